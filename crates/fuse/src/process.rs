//! Facts about the calling process that the kernel's request does not have, from `/proc`.

use std::path::PathBuf;
use std::sync::OnceLock;

use proto::msg::Cred;

/// All capabilities that Linux has.
const ALL_CAPABILITIES: u64 = (1 << 41) - 1;

/// The caller's credentials. For root `/proc` is not read, because root may do everything.
pub(crate) fn cred(request: &fusewire::Request<'_>, umask: u32) -> Cred {
    let (uid, gid) = (request.uid, request.gid);
    if uid == 0 {
        return Cred { uid, gid, umask, capabilities: ALL_CAPABILITIES, ..Cred::default() };
    }
    let (groups, capabilities) = status(request.pid).unwrap_or_default();
    Cred { uid, gid, groups, umask, capabilities, job: String::new() }
}

/// Supplementary groups and effective capabilities of a thread.
fn status(pid: u32) -> Option<(Vec<u32>, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let groups = field(&text, "Groups:")?.split_ascii_whitespace().filter_map(|g| g.parse().ok()).collect();
    let capabilities = field(&text, "CapEff:").and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())?;
    // Most threads have none, and need no further check.
    let counts = capabilities == 0 || shares_user_namespace(pid);
    Some((groups, if counts { capabilities } else { 0 }))
}

/// Whether a thread is in this process's user namespace. Any user can make a user namespace and have all capabilities in it, but these
/// do not apply outside of it.
fn shares_user_namespace(pid: u32) -> bool {
    static OWN: OnceLock<Option<PathBuf>> = OnceLock::new();
    let own = OWN.get_or_init(|| std::fs::read_link("/proc/self/ns/user").ok());
    own.is_some() && std::fs::read_link(format!("/proc/{pid}/ns/user")).ok() == *own
}

/// Signals that do not end a program by default: SIGCHLD, SIGCONT, SIGURG, SIGWINCH, and those that stop it.
const HARMLESS: u64 = {
    let signals = [
        libc::SIGCHLD,
        libc::SIGCONT,
        libc::SIGURG,
        libc::SIGWINCH,
        libc::SIGSTOP,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
    ];
    let (mut set, mut at) = (0, 0);
    while at < signals.len() {
        set |= bit(signals[at]);
        at += 1;
    }
    set
};

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// The effect of pending signals on a thread that waits for the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// No signal is pending, or none that matters.
    None,
    /// A signal that the program handles is pending.
    Handled,
    /// The thread never returns to its program: it is gone, or a pending signal ends it.
    Ends,
}

/// The effect of pending signals on a thread. [`Signal::None`] for a thread of another process namespace (0), which cannot be inspected,
/// and for all threads if `/proc` belongs to another namespace.
pub(crate) fn signal(thread: u32) -> Signal {
    static OWN: OnceLock<bool> = OnceLock::new();
    let own = || {
        let shown = std::fs::read_link("/proc/self").ok();
        shown.and_then(|shown| shown.to_str()?.parse().ok()) == Some(std::process::id())
    };
    if thread == 0 || !*OWN.get_or_init(own) {
        return Signal::None;
    }
    match std::fs::read_to_string(format!("/proc/{thread}/status")) {
        Ok(text) => pending(&text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Signal::Ends,
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Signal::Ends,
        Err(_) => Signal::None,
    }
}

/// The effect of pending signals by the text of `/proc/TID/status`. The kernel turns most fatal signals into a SIGKILL of each thread,
/// but not those that dump core; a thread that is already exiting gets none.
fn pending(status: &str) -> Signal {
    let set = |name| field(status, name).and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    let pending = set("SigPnd:") | set("ShdPnd:");
    let (blocked, handled) = (set("SigBlk:"), set("SigCgt:"));
    let survived = blocked | handled | set("SigIgn:") | HARMLESS;
    if pending & (bit(libc::SIGKILL) | !survived) != 0 {
        Signal::Ends
    } else if pending & handled & !blocked != 0 {
        Signal::Handled
    } else {
        Signal::None
    }
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_ends_the_program_is_told_from_one_that_does_not() {
        let status = |own: u64, shared: u64, blocked: u64, ignored: u64, caught: u64| {
            format!(
                "Name:\tcat\nSigQ:\t1/2\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n"
            )
        };
        let (kill, int, quit, chld) = (bit(libc::SIGKILL), bit(libc::SIGINT), bit(libc::SIGQUIT), bit(libc::SIGCHLD));
        for (own, shared, blocked, ignored, caught, does) in [
            (0, 0, 0, 0, 0, Signal::None),
            (kill, 0, 0, 0, 0, Signal::Ends),
            (0, kill, u64::MAX, u64::MAX, u64::MAX, Signal::Ends),
            (0, int, 0, 0, 0, Signal::Ends),
            (0, quit, 0, 0, 0, Signal::Ends),
            (0, int, int, 0, 0, Signal::None),
            (0, int, 0, int, 0, Signal::None),
            (int, 0, 0, 0, int, Signal::Handled),
            (0, int, 0, 0, int, Signal::Handled),
            (int, 0, int, 0, int, Signal::None),
            (chld, 0, 0, 0, chld, Signal::Handled),
            (int | quit, 0, 0, 0, int, Signal::Ends),
            (chld, bit(libc::SIGTSTP) | bit(libc::SIGURG), 0, 0, 0, Signal::None),
        ] {
            let text = status(own, shared, blocked, ignored, caught);
            assert_eq!(pending(&text), does, "{text}");
        }
    }

    #[test]
    fn a_thread_that_is_gone_is_dying_and_an_unknown_one_is_not() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert_eq!(signal(pid), Signal::Ends);
        assert_eq!([signal(std::process::id()), signal(0)], [Signal::None, Signal::None]);
    }

    /// In its own user namespace a program has all capabilities.
    #[test]
    fn capabilities_of_another_user_namespace_do_not_count() {
        let sleep = |command: &mut std::process::Command| {
            command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn()
        };
        let mut within =
            sleep(std::process::Command::new("unshare").args(["-U", "-r", "sh", "-c", "echo ready; cat"])).unwrap();
        let mut line = [0; 6];
        std::io::Read::read_exact(within.stdout.as_mut().unwrap(), &mut line).unwrap();
        let text = std::fs::read_to_string(format!("/proc/{}/status", within.id())).unwrap();
        assert_ne!(field(&text, "CapEff:").unwrap().trim().trim_start_matches('0'), "", "it has some");
        assert_eq!(status(within.id()).unwrap().1, 0);
        drop(within.stdin.take());
        within.wait().unwrap();
        let own = std::fs::read_to_string("/proc/self/status").unwrap();
        let own = u64::from_str_radix(field(&own, "CapEff:").unwrap().trim(), 16).unwrap();
        assert_eq!(status(std::process::id()).unwrap().1, own);
    }

    #[test]
    fn this_process_has_groups() {
        let own = std::process::id();
        assert!(status(own).is_some());
    }
}
