//! Programs that people run: tar, git, a compiler. On a quiet file system, and while servers are killed under them.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use e2e::command::shell;
use e2e::{Cluster, Shape, Story, Which, command, needs_root, trees};
use rustix::fs::{Mode, OFlags};

/// Runs `body` on a mount; with `kills`, all servers die and come back, one after another, while it runs.
fn on_a_mount(name: &str, kills: bool, body: impl Fn(&Story, &Path) + Send + Sync) {
    if !needs_root() {
        return;
    }
    let story = Story::begin(name, Duration::from_secs(240));
    let mut cluster = Cluster::start(&story, Shape::mounts(1));
    let mount = cluster.mount(0).to_path_buf();
    let done = AtomicBool::new(false);
    let finished = std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(&story, &mount)));
            done.store(true, Ordering::Relaxed);
            result
        });
        let (mut count, victims) = (0, [Which::Mdt(0), Which::Ost(0), Which::Mgt, Which::Mdt(0), Which::Ost(1)]);
        while kills && !done.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(300));
            let victim = victims[count % victims.len()];
            cluster.kill9(victim);
            cluster.restart(victim);
            count += 1;
        }
        if kills {
            story.note(&format!("{count} kills"));
        }
        worker.join().unwrap()
    });
    if let Err(panic) = finished {
        std::panic::resume_unwind(panic);
    }
}

fn tar_of_a_tree(story: &Story, mount: &Path) {
    let folder = story.folder();
    trees::make(&folder.join("tree"), 11, 3000).unwrap();
    shell(&format!("cd {} && tar cf tree.tar tree", folder.display())).ok();
    command("tar").args(["xpf"]).arg(folder.join("tree.tar")).arg("-C").arg(mount).ok();
    trees::assert_equal(&folder.join("tree"), &mount.join("tree"));
    command("tar").args(["df"]).arg(folder.join("tree.tar")).arg("-C").arg(mount).ok();
    // And the other way: an archive of it, on it.
    command("tar").args(["cf"]).arg(mount.join("back.tar")).arg("-C").arg(mount).arg("tree").ok();
    fs::create_dir(folder.join("back")).unwrap();
    command("tar").args(["xpf"]).arg(mount.join("back.tar")).arg("-C").arg(folder.join("back")).ok();
    trees::assert_equal(&folder.join("tree"), &folder.join("back/tree"));
    command("rm").arg("-r").arg(mount.join("tree")).ok();
    assert!(!mount.join("tree").exists());
}

/// A repository with a history, made on the machine's own disk.
fn a_repository(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    git(folder, "init -q .");
    for commit in 0..8u64 {
        trees::make(&folder.join(format!("part{commit}")), commit, 60).unwrap();
        fs::write(folder.join("README"), format!("commit {commit}\n").repeat(200)).unwrap();
        git(folder, "add -A");
        git(folder, &format!("commit -q -m commit-{commit}"));
    }
}

fn git(folder: &Path, words: &str) {
    command("git")
        .in_dir(folder)
        .args(["-c", "user.name=e2e", "-c", "user.email=e2e@example.invalid", "-c", "safe.directory=*"])
        .args(["-c", "gc.auto=0", "-c", "init.defaultBranch=main"])
        .args(words.split(' '))
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .ok();
}

fn git_on_it(story: &Story, mount: &Path) {
    let origin = story.folder().join("origin");
    a_repository(&origin);
    git(mount, &format!("clone -q --no-hardlinks {} clone", origin.display()));
    let clone = mount.join("clone");
    git(&clone, "fsck --full --strict");
    fs::write(clone.join("new file"), "made here\n").unwrap();
    git(&clone, "add -A");
    git(&clone, "commit -q -m here");
    git(&clone, "checkout -q -b side HEAD~3");
    fs::write(clone.join("side"), "side\n").unwrap();
    git(&clone, "add side");
    git(&clone, "commit -q -m side");
    git(&clone, "rebase -q main");
    git(&clone, "repack -q -a -d");
    git(&clone, "fsck --full --strict");
    git(mount, "clone -q clone second");
    git(&mount.join("second"), "fsck --full");
    let status = command("git").in_dir(&clone).args(["-c", "safe.directory=*", "status", "--porcelain"]).ok();
    assert_eq!(status, "", "nothing may have changed by itself");
    assert_eq!(fs::read_to_string(mount.join("second/new file")).unwrap(), "made here\n");
}

/// A workspace with a library, a build script and a program that uses both.
fn cargo_on_it(_story: &Story, mount: &Path) {
    let root = mount.join("workspace");
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("Cargo.toml", "[workspace]\nresolver = \"2\"\nmembers = [\"library\", \"program\"]\n");
    write("library/Cargo.toml", "[package]\nname = \"library\"\nversion = \"0.1.0\"\nedition = \"2021\"\n");
    let modules: Vec<String> = (0..12).map(|number| format!("pub mod m{number};")).collect();
    write("library/src/lib.rs", &modules.join("\n"));
    for number in 0..12 {
        let text = format!("pub fn value() -> u64 {{ (0..{number}u64).map(|x| x * x).sum() }}\n");
        write(&format!("library/src/m{number}.rs"), &text);
    }
    write(
        "program/Cargo.toml",
        "[package]\nname = \"program\"\nversion = \"0.1.0\"\nedition = \"2021\"\nbuild = \"build.rs\"\n\
         [dependencies]\nlibrary = { path = \"../library\" }\n",
    );
    write(
        "program/build.rs",
        "fn main() {\n    let out = std::env::var(\"OUT_DIR\").unwrap();\n    \
         std::fs::write(format!(\"{out}/made.rs\"), \"pub const MADE: u64 = 42;\").unwrap();\n}\n",
    );
    write(
        "program/src/main.rs",
        "include!(concat!(env!(\"OUT_DIR\"), \"/made.rs\"));\n\
         fn main() { println!(\"{}\", MADE + library::m11::value()); }\n\
         #[test]\nfn adds_up() { assert_eq!(MADE + library::m3::value(), 47); }\n",
    );
    let cargo = |words: &[&str]| {
        command("cargo")
            .in_dir(&root)
            .args(words)
            .env("CARGO_TARGET_DIR", root.join("target"))
            .env("CARGO_NET_OFFLINE", "true")
            .env("CARGO_BUILD_JOBS", "2")
            .within(Duration::from_secs(180))
            .ok()
    };
    cargo(&["build", "--offline", "--quiet"]);
    assert_eq!(command(root.join("target/debug/program")).ok(), "427\n");
    cargo(&["test", "--offline", "--quiet"]);
    // Nothing is built twice: the times of files are kept.
    let again = command("cargo")
        .in_dir(&root)
        .args(["build", "--offline", "--verbose"])
        .env("CARGO_TARGET_DIR", root.join("target"))
        .run();
    assert!(!again.stderr.contains("Compiling") && !again.stderr.contains("Dirty"), "{again}");
    write("library/src/m11.rs", "pub fn value() -> u64 { 1 }\n");
    cargo(&["build", "--offline", "--quiet"]);
    assert_eq!(command(root.join("target/debug/program")).ok(), "43\n");
}

#[test]
fn tar() {
    on_a_mount("tar", false, tar_of_a_tree);
}

#[test]
fn tar_while_servers_die() {
    on_a_mount("tar while servers die", true, tar_of_a_tree);
}

#[test]
fn git_works() {
    on_a_mount("git", false, git_on_it);
}

#[test]
fn git_while_servers_die() {
    on_a_mount("git while servers die", true, git_on_it);
}

#[test]
fn a_cargo_build() {
    on_a_mount("cargo build", false, cargo_on_it);
}

#[test]
fn a_cargo_build_while_servers_die() {
    on_a_mount("cargo build while servers die", true, cargo_on_it);
}

/// Linux lets an open with `O_TRUNC` fail while a program runs from the file, also one that is not for writing.
#[test]
fn a_program_that_runs_is_not_emptied_by_an_open_that_fails() {
    on_a_mount("a program that runs", false, |_, mount| {
        let program = mount.join("sleep");
        fs::copy(fs::canonicalize("/bin/sleep").unwrap(), &program).unwrap();
        let before = fs::read(&program).unwrap();
        let mut running = std::process::Command::new(&program).arg("60").spawn().unwrap();
        for access in [OFlags::WRONLY, OFlags::RDWR, OFlags::RDONLY] {
            let opened = rustix::fs::open(&program, access | OFlags::TRUNC, Mode::empty());
            assert_eq!(opened.err(), Some(rustix::io::Errno::TXTBSY), "{access:?}");
        }
        let lives = running.try_wait().unwrap().is_none();
        running.kill().unwrap();
        running.wait().unwrap();
        assert!(lives && fs::read(&program).unwrap() == before, "the program was emptied");
        // Nobody runs it any more.
        drop(rustix::fs::open(&program, OFlags::RDONLY | OFlags::TRUNC, Mode::empty()).unwrap());
        assert_eq!(fs::metadata(&program).unwrap().len(), 0);
    });
}
