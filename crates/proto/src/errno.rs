//! The closed list of errors that a program can see, with Linux numbers.

use core::fmt;

macro_rules! errnos {
    ($($name:ident = $num:literal, $text:literal;)*) => {
        /// An error of a file system call. The numbers are Linux's; on the wire a reply carries the number negated.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(clippy::upper_case_acronyms, missing_docs)]
        #[repr(i32)]
        pub enum Errno { $($name = $num,)* }

        impl Errno {
            /// The error with number `n`; `EIO` for a number that is not in the list (from a newer peer).
            pub fn from_raw(n: i32) -> Errno {
                match n { $($num => Errno::$name,)* _ => Errno::EIO }
            }
            /// The symbol, such as `ENOENT`.
            pub fn name(self) -> &'static str {
                match self { $(Errno::$name => stringify!($name),)* }
            }
            /// The message that libc prints for it.
            pub fn text(self) -> &'static str {
                match self { $(Errno::$name => $text,)* }
            }
        }
    };
}

errnos! {
    EPERM = 1, "Operation not permitted";
    ENOENT = 2, "No such file or directory";
    EINTR = 4, "Interrupted system call";
    EIO = 5, "Input/output error";
    ENXIO = 6, "No such device or address";
    E2BIG = 7, "Argument list too long";
    EBADF = 9, "Bad file descriptor";
    EAGAIN = 11, "Resource temporarily unavailable";
    ENOMEM = 12, "Cannot allocate memory";
    EACCES = 13, "Permission denied";
    EBUSY = 16, "Device or resource busy";
    EEXIST = 17, "File exists";
    EXDEV = 18, "Invalid cross-device link";
    ENODEV = 19, "No such device";
    ENOTDIR = 20, "Not a directory";
    EISDIR = 21, "Is a directory";
    EINVAL = 22, "Invalid argument";
    EMFILE = 24, "Too many open files";
    ENOTTY = 25, "Inappropriate ioctl for device";
    ETXTBSY = 26, "Text file busy";
    EFBIG = 27, "File too large";
    ENOSPC = 28, "No space left on device";
    EROFS = 30, "Read-only file system";
    EMLINK = 31, "Too many links";
    ERANGE = 34, "Numerical result out of range";
    EDEADLK = 35, "Resource deadlock avoided";
    ENAMETOOLONG = 36, "File name too long";
    ENOLCK = 37, "No locks available";
    ENOSYS = 38, "Function not implemented";
    ENOTEMPTY = 39, "Directory not empty";
    ELOOP = 40, "Too many levels of symbolic links";
    ENODATA = 61, "No data available";
    EPROTO = 71, "Protocol error";
    EOVERFLOW = 75, "Value too large for defined data type";
    EREMCHG = 78, "Remote address changed";
    EOPNOTSUPP = 95, "Operation not supported";
    EADDRINUSE = 98, "Address already in use";
    ENOTCONN = 107, "Transport endpoint is not connected";
    ESHUTDOWN = 108, "Cannot send after transport endpoint shutdown";
    ETIMEDOUT = 110, "Connection timed out";
    EALREADY = 114, "Operation already in progress";
    EINPROGRESS = 115, "Operation now in progress";
    ESTALE = 116, "Stale file handle";
    EDQUOT = 122, "Disk quota exceeded";
}

impl Errno {
    /// The Linux number, positive.
    pub fn raw(self) -> i32 {
        self as i32
    }

    /// Interprets the status field of a reply: 0 or positive is success.
    pub fn from_status(status: i32) -> Result<(), Errno> {
        if status < 0 { Err(Errno::from_raw(status.checked_neg().unwrap_or(5))) } else { Ok(()) }
    }

    /// The status field of a reply with this result.
    pub fn to_status<T>(result: &Result<T, Errno>) -> i32 {
        match result {
            Ok(_) => 0,
            Err(e) => -e.raw(),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for Errno {}
