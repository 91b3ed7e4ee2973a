//! What the kernel's request does not say about the calling process, from `/proc`.

use proto::msg::Cred;

/// All capabilities that Linux has.
const ALL_CAPABILITIES: u64 = (1 << 41) - 1;

/// The caller's credentials. Root's need no look at the process: it may do everything here.
pub fn cred(request: &fusewire::Request<'_>, umask: u32) -> Cred {
    let (uid, gid) = (request.uid, request.gid);
    if uid == 0 {
        return Cred { uid, gid, groups: Vec::new(), umask, capabilities: ALL_CAPABILITIES };
    }
    let (groups, capabilities) = status(request.pid).unwrap_or_default();
    Cred { uid, gid, groups, umask, capabilities }
}

/// Supplementary groups and effective capabilities of a thread.
fn status(pid: u32) -> Option<(Vec<u32>, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let groups = field(&text, "Groups:")?.split_ascii_whitespace().filter_map(|g| g.parse().ok()).collect();
    let capabilities = field(&text, "CapEff:").and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())?;
    Some((groups, capabilities))
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

/// Whether a thread that waits for the kernel will never come back to its program: it is gone, or a signal that it was sent ends it.
/// One of another process namespace (0) cannot be looked at.
pub fn is_dying(thread: u32) -> bool {
    if thread == 0 {
        return false;
    }
    match std::fs::read_to_string(format!("/proc/{thread}/status")) {
        Ok(text) => has_fatal_signal(&text),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH),
    }
}

/// The kernel turns most fatal signals into a SIGKILL of each thread, but not those that leave a core; and a thread that is ending
/// already gets none.
fn has_fatal_signal(status: &str) -> bool {
    let set = |name| field(status, name).and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    let pending = set("SigPnd:") | set("ShdPnd:");
    let survived = set("SigBlk:") | set("SigIgn:") | set("SigCgt:") | HARMLESS;
    pending & (bit(libc::SIGKILL) | !survived) != 0
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
        for (own, shared, blocked, ignored, caught, fatal) in [
            (0, 0, 0, 0, 0, false),
            (kill, 0, 0, 0, 0, true),
            (0, kill, u64::MAX, u64::MAX, u64::MAX, true),
            (0, int, 0, 0, 0, true),
            (0, quit, 0, 0, 0, true),
            (0, int, int, 0, 0, false),
            (0, int, 0, int, 0, false),
            (int, 0, 0, 0, int, false),
            (int | quit, 0, 0, 0, int, true),
            (chld, bit(libc::SIGTSTP) | bit(libc::SIGURG), 0, 0, 0, false),
        ] {
            let text = status(own, shared, blocked, ignored, caught);
            assert_eq!(has_fatal_signal(&text), fatal, "{text}");
        }
    }

    #[test]
    fn a_thread_that_is_gone_is_dying_and_an_unknown_one_is_not() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert!(is_dying(pid));
        assert!(!is_dying(std::process::id()) && !is_dying(0));
    }

    #[test]
    fn this_process_has_groups() {
        let own = std::process::id();
        assert!(status(own).is_some());
    }
}
