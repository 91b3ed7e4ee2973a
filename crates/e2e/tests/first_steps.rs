//! The first pages that anybody reads work as printed.

use std::time::Duration;

use e2e::command::{command, shell};
use e2e::{Story, adamant, needs_root};

/// The commands of a page: what stands in its blocks for the shell.
fn commands(page: &str) -> String {
    let mut inside = false;
    let mut lines = Vec::new();
    for line in page.lines() {
        match line.trim_end() {
            "```sh" => inside = true,
            "```" => inside = false,
            line if inside => lines.push(line),
            _ => {}
        }
    }
    lines.join("\n")
}

#[test]
fn the_commands_of_the_first_steps_work_as_printed() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("first steps", Duration::from_secs(120));
    let home = story.folder();
    std::fs::create_dir(home.join("bin")).unwrap();
    std::os::unix::fs::symlink(e2e::command::binary(), home.join("bin/adamant")).unwrap();
    adamant(["install-links"]).arg(home.join("bin")).ok();
    // In a network of its own, where the ports are free, and under a folder of its own.
    let page = commands(include_str!("../../../docs/src/first-steps.md"));
    let page = page
        .replace("/srv/", &format!("{}/srv/", home.display()))
        .replace("/mnt/", &format!("{}/mnt/", home.display()));
    assert!(page.contains("adamant serve") && page.contains("lfs setstripe"), "{page}");
    // Targets tell the management target of themselves in less time than a person takes for the next line, but not in none.
    let page = page.replace(" &\n", " &\nsleep 1\n");
    let script = format!(
        "set -e; ip link set lo up; cd {0}; PATH={0}/bin:/usr/bin:/bin:/usr/sbin:/sbin; mkdir -p srv\n{page}\n\
         adamant status\numount mnt/demo\nkill %1 %2\nwait || true\nadamant down --dir srv/adamant\nadamant down\n",
        home.display()
    );
    let outcome = command("unshare").args(["-n", "bash", "-c", &script]).within(Duration::from_secs(90)).run();
    if outcome.code != Some(0) {
        let _ =
            shell(&format!("cd {0}; for m in mnt/demo mnt/adamant mnt; do umount -l $m; done", home.display())).run();
    }
    let said = outcome.ok();
    for word in ["demo-OST0001_UUID", "lmm_stripe_count", "mdt.demo-MDT0000.num_exports"] {
        assert!(said.contains(word), "{word} is missing: {said}");
    }
}

/// What a machine lacks is named before anything is compiled.
#[test]
fn what_a_machine_lacks_is_named_at_once() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/check-machine.sh");
    let folder = tempfile_bin();
    let outcome = command("/bin/sh").arg(script).env("PATH", &folder).run();
    assert_eq!(outcome.code, Some(1), "{outcome}");
    for word in ["build-essential", "rustup"] {
        assert!(outcome.stderr.contains(word), "{word}: {outcome}");
    }
    let _ = std::fs::remove_dir_all(folder);
}

/// A folder with `id` and nothing else.
fn tempfile_bin() -> String {
    let folder = std::env::temp_dir().join(format!("adamant-bin-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let _ = std::os::unix::fs::symlink("/usr/bin/id", folder.join("id"));
    folder.display().to_string()
}
