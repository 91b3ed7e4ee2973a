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

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_groups() {
        let own = std::process::id();
        assert!(status(own).is_some());
    }
}
