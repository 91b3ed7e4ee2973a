//! What the kernel's request does not say about the calling process, from `/proc`.

use proto::msg::Cred;

/// All capabilities that Linux has.
const ALL_CAPABILITIES: u64 = (1 << 41) - 1;

/// The caller's credentials. Root's need no look at the process: it may do everything here.
pub fn cred(request: &fuser::Request, umask: u32) -> Cred {
    let (uid, gid) = (request.uid(), request.gid());
    if uid == 0 {
        return Cred { uid, gid, groups: Vec::new(), umask, capabilities: ALL_CAPABILITIES };
    }
    let (groups, capabilities) = status(request.pid()).unwrap_or_default();
    Cred { uid, gid, groups, umask, capabilities }
}

/// Supplementary groups and effective capabilities of a thread.
fn status(pid: u32) -> Option<(Vec<u32>, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let groups = field(&text, "Groups:")?.split_ascii_whitespace().filter_map(|g| g.parse().ok()).collect();
    let capabilities = field(&text, "CapEff:").and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())?;
    Some((groups, capabilities))
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name))
}

/// Whether a thread has a signal waiting that would end or interrupt its system call.
///
/// The session layer does not pass the kernel's interrupts on, so calls that may wait for long are watched with this.
pub fn has_signal(pid: u32) -> bool {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/status")) else {
        return true;
    };
    let mask = |name| field(&text, name).and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    (mask("SigPnd:") | mask("ShdPnd:")) & !mask("SigBlk:") & !mask("SigIgn:") != 0
}

/// Whether a thread is in `flock(2)`: the session layer does not tell it apart from a record lock on the whole file.
pub fn is_in_flock(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/syscall"))
        .ok()
        .and_then(|text| text.split_ascii_whitespace().next().and_then(|number| number.parse::<i64>().ok()))
        == Some(libc::SYS_flock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_groups_and_no_signal() {
        let own = std::process::id();
        assert!(status(own).is_some());
        assert!(!has_signal(own));
        assert!(!is_in_flock(own));
    }
}
