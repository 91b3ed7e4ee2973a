//! Several metadata targets: they are added while the file system is in use, and one that is away stops nothing that lives on
//! another.

use std::fs;
use std::time::{Duration, Instant};

use e2e::faults::wait_for;
use e2e::load::{self, Load};
use e2e::{Cluster, Shape, Story, Which, adamant, needs_root};

const AT_ONCE: Duration = Duration::from_secs(30);

/// The kernel sees one tree, wherever its directories lie.
#[test]
fn directories_are_made_used_and_removed_on_other_metadata_targets() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("directories on other metadata targets", Duration::from_secs(120));
    let mut cluster = Cluster::with_mdts(&story, 2);
    let (mount, other) = (cluster.mount(0).to_path_buf(), cluster.mount(1).to_path_buf());
    let far = mount.join("far");
    assert!(!far.exists() && !other.join("far").exists());
    adamant(["lfs", "mkdir", "-i", "1"]).arg(&far).ok();
    for path in [&far, &other.join("far")] {
        assert_eq!(adamant(["lfs", "getdirstripe", "-m"]).arg(path).ok(), "1\n");
    }
    let deep = far.join("a/b/c");
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("file"), "text").unwrap();
    assert_eq!(adamant(["lfs", "getstripe", "-m"]).arg(deep.join("file")).ok(), "1\n");
    assert_eq!(fs::read_to_string(other.join("far/a/b/c/file")).unwrap(), "text");
    let fid = adamant(["lfs", "path2fid"]).arg(deep.join("file")).ok();
    assert_eq!(adamant(["lfs", "fid2path"]).arg(&other).arg(fid.trim()).ok(), "/far/a/b/c/file\n");
    assert_eq!(adamant(["lfs", "find"]).arg(&mount).args(["--mdt", "1"]).ok().lines().count(), 5);
    // An object stays where it is when it gets another name.
    fs::rename(deep.join("file"), mount.join("file")).unwrap();
    assert_eq!(fs::read_to_string(other.join("file")).unwrap(), "text");
    assert_eq!(adamant(["lfs", "getstripe", "-m"]).arg(other.join("file")).ok(), "1\n");
    assert_eq!(adamant(["lfs", "path2fid"]).arg(mount.join("file")).ok(), fid);
    fs::hard_link(other.join("file"), other.join("far/link")).unwrap();
    fs::write(mount.join("file"), "more text").unwrap();
    assert_eq!(fs::read_to_string(other.join("far/link")).unwrap(), "more text");
    let paths = adamant(["lfs", "fid2path"]).arg(&other).arg(fid.trim()).ok();
    assert!(paths.contains("/file\n") && paths.contains("/far/link\n"), "{paths}");
    let open = fs::File::open(mount.join("far/link")).unwrap();
    fs::write(mount.join("new"), "new").unwrap();
    fs::rename(mount.join("new"), mount.join("file")).unwrap();
    fs::rename(other.join("file"), other.join("far/link")).unwrap();
    assert_eq!(fs::read_to_string(far.join("link")).unwrap(), "new");
    let mut text = [0; 20];
    let length = std::os::unix::fs::FileExt::read_at(&open, &mut text, 0).unwrap();
    assert_eq!(&text[..length], b"more text", "it is open, and has no name");
    drop(open);
    let fid = adamant(["lfs", "path2fid"]).arg(&deep).ok();
    fs::rename(&deep, mount.join("c")).unwrap();
    assert_eq!(adamant(["lfs", "path2fid"]).arg(other.join("c")).ok(), fid);
    assert!(fs::rename(&far, mount.join("c/far")).is_ok() && !other.join("far").exists());
    let ring = fs::rename(other.join("c"), other.join("c/far/a/c")).map_err(|error| error.raw_os_error());
    assert_eq!(ring, Err(Some(22)), "EINVAL");
    fs::rename(mount.join("c/far"), &far).unwrap();
    fs::rename(&far, mount.join("further")).unwrap();
    fs::rename(other.join("further"), other.join("far")).unwrap();
    assert!(fs::remove_dir(&far).is_err());
    fs::remove_dir_all(other.join("far")).unwrap();
    fs::remove_dir(mount.join("c")).unwrap();
    assert!(!far.exists() && fs::read_dir(&mount).unwrap().count() == 0);

    // While the target is away, what needs it waits and can be killed.
    adamant(["lfs", "mkdir", "-i", "1"]).arg(&far).ok();
    cluster.kill9(Which::Mdt(1));
    let mut waits = std::process::Command::new(e2e::binary())
        .args(["lfs", "mkdir", "-i", "1"])
        .arg(mount.join("later"))
        .spawn()
        .unwrap();
    let start = Instant::now();
    for number in 0..20 {
        fs::create_dir(mount.join(format!("near{number}"))).unwrap();
    }
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(waits.try_wait().unwrap().is_none(), "it waits");
    waits.kill().unwrap();
    waits.wait().unwrap();
    cluster.restart(Which::Mdt(1));
    fs::remove_dir(&far).unwrap();
    assert!(!other.join("far").exists());
}

/// Files go back and forth between two metadata targets, over earlier versions of themselves, and directories with them, while
/// either target is killed.
#[test]
fn files_are_renamed_between_metadata_targets_that_die() {
    const FILES: usize = 8;
    if !needs_root() {
        return;
    }
    let story = Story::begin("files are renamed between metadata targets that die", Duration::from_secs(180));
    let mut cluster = Cluster::with_mdts(&story, 2);
    let (near, far) = (cluster.mount(0).join("near"), cluster.mount(0).join("far"));
    fs::create_dir(&near).unwrap();
    adamant(["lfs", "mkdir", "-i", "1"]).arg(&far).ok();
    for mount in 0..2 {
        fs::create_dir(near.join(format!("n{mount}"))).unwrap();
        adamant(["lfs", "mkdir", "-i", "1"]).arg(near.join(format!("x{mount}"))).ok();
    }
    let ends = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let workers: Vec<_> = (0..2)
        .map(|mount| {
            let (near, far) = (cluster.mount(mount).join("near"), cluster.mount(mount).join("far"));
            let ends = ends.clone();
            std::thread::spawn(move || {
                let mut round = 0;
                while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                    round += 1;
                    for file in 0..FILES {
                        let name = format!("f{mount}-{file}");
                        let (from, to) = if round % 2 == 0 { (&near, &far) } else { (&far, &near) };
                        let text = format!("{name} in round {round}");
                        // A new version on one target replaces the last one, which lies on the other.
                        fs::write(from.join("new").with_extension(&name), &text).unwrap();
                        fs::rename(from.join("new").with_extension(&name), to.join(&name)).unwrap();
                        assert_eq!(fs::read_to_string(to.join(&name)).unwrap(), text);
                        fs::hard_link(to.join(&name), from.join(format!("{name}.link"))).unwrap();
                        fs::rename(to.join(&name), from.join(&name)).unwrap();
                        fs::remove_file(from.join(format!("{name}.link"))).unwrap();
                        fs::rename(from.join(&name), to.join(&name)).unwrap();
                        assert_eq!(fs::read_to_string(to.join(&name)).unwrap(), text);
                        fs::rename(to.join(&name), near.join(&name)).unwrap();
                    }
                    // Two directories, one on each target, in each other and in those of both targets.
                    let (one, other) = (format!("n{mount}"), format!("x{mount}"));
                    for (above, below) in [(&one, &other), (&other, &one)] {
                        fs::rename(near.join(below), near.join(above).join(below)).unwrap();
                        fs::rename(near.join(above), far.join(above)).unwrap();
                        assert!(fs::rename(far.join(above), far.join(above).join(below).join("ring")).is_err());
                        fs::rename(far.join(above).join(below), near.join(below)).unwrap();
                        fs::rename(far.join(above), near.join(above)).unwrap();
                        assert_eq!(fs::read_dir(near.join(above)).unwrap().count(), 0);
                    }
                }
                round
            })
        })
        .collect();
    for kill in 0..6 {
        std::thread::sleep(Duration::from_secs(2));
        let which = Which::Mdt(kill % 2);
        cluster.kill9(which);
        cluster.restart(which);
    }
    std::thread::sleep(Duration::from_secs(2));
    ends.store(true, std::sync::atomic::Ordering::Relaxed);
    let rounds: Vec<usize> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
    story.note(&format!("rounds of 8 files: {rounds:?}"));
    assert!(rounds.iter().all(|rounds| *rounds > 3), "{rounds:?}");
    for mount in 0..2 {
        let list = |dir: &str| fs::read_dir(cluster.mount(mount).join(dir)).unwrap().count();
        assert_eq!((list("near"), list("far")), (2 * FILES + 4, 0));
        for (by, last) in rounds.iter().enumerate() {
            for file in 0..FILES {
                let name = format!("f{by}-{file}");
                let text = fs::read_to_string(cluster.mount(mount).join("near").join(&name)).unwrap();
                assert_eq!(text, format!("{name} in round {last}"));
            }
        }
    }
    for which in [Which::Mdt(0), Which::Mdt(1)] {
        wait_for("nothing is in doubt", || cluster.get_on(which, "mdt.*.changes_in_doubt").is_empty());
    }
}

#[test]
fn a_metadata_target_is_added_dies_and_comes_back_under_load() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("a metadata target is added, dies and comes back under load", Duration::from_secs(180));
    let mut cluster = Cluster::start(&story, Shape::mounts(2));
    let load = Load::start(&[cluster.mount(0).to_path_buf()], 2, 7);
    load.await_progress(100, AT_ONCE);
    let line =
        |cluster: &Cluster, index: u32, state: &str| format!("{index}: {}-MDT{index:04x}_UUID {state}", cluster.fsname);

    // The MGS publishes the new target and whose sequences are whose; mounts follow without being mounted again.
    cluster.add(Which::Mdt(2));
    cluster.add(Which::Mdt(1));
    let all = [0, 1, 2].map(|index| line(&cluster, index, "ACTIVE"));
    for mount in 0..2 {
        wait_for("the mount uses all metadata targets", || cluster.mdts(mount) == all);
    }
    for which in [Which::Mdt(0), Which::Mdt(1), Which::Mdt(2)] {
        wait_for("every target knows every range", || {
            let fldb = cluster.get_on(which, "fld.*.fldb");
            ["):0:mdt", "):1:mdt", "):2:mdt"].iter().all(|end| fldb.contains(end))
        });
    }
    let df = adamant(["lfs", "df"]).arg(cluster.mount(1)).ok();
    assert!((0..3).all(|index| df.contains(&format!("-MDT{index:04x}_UUID"))), "{df}");
    // They are on one disk: its free files count once.
    let of = |cluster: &Cluster, mount: usize| rustix::fs::statvfs(cluster.mount(mount)).unwrap();
    let before = of(&cluster, 0).f_ffree;
    let one: u64 = cluster.get_on(Which::Mdt(1), "osd-*.*.filesfree").parse().unwrap();
    assert!(before.abs_diff(one) < one / 5, "{before} free files, and {one} on one of three targets");
    let df = adamant(["lfs", "df", "-i"]).arg(cluster.mount(1)).ok();
    let summary = df.lines().last().and_then(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok());
    assert!(summary.is_some_and(|left| left.abs_diff(one) < one / 5), "{df}");

    cluster.kill9(Which::Mdt(1));
    load.await_progress(200, AT_ONCE);
    let start = Instant::now();
    let folder = cluster.mount(1).join("folder");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("file"), "text").unwrap();
    adamant(["sync"]).arg(&folder).ok();
    assert_eq!(fs::read_to_string(cluster.mount(0).join("folder/file")).unwrap(), "text");
    fs::rename(folder.join("file"), folder.join("other")).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    of(&cluster, 1);
    let took = start.elapsed();
    story.note(&format!("with one of three metadata targets away: {took:.1?}"));
    assert!(took < Duration::from_secs(5), "{took:?}");
    // A mount that begins meanwhile does not wait for it either.
    let third = cluster.add_mount(&e2e::binary());
    fs::write(cluster.mount(third).join("third"), "3").unwrap();
    assert_eq!(cluster.mdts(third)[1], line(&cluster, 1, "INACTIVE"));

    cluster.restart(Which::Mdt(1));
    for mount in 0..3 {
        wait_for("the target is used again", || cluster.mdts(mount) == all);
    }

    // Its eviction of a mount costs nothing that lives on another.
    let kept = fs::File::create(cluster.mount(1).join("kept")).unwrap();
    let mount = cluster.mount(1).display().to_string();
    let uuid = adamant(["lctl", "--device", &mount, "get_param", "-n", "llite.*.uuid"]).ok();
    cluster.set_on(Which::Mdt(2), "mdt.*.evict_client", uuid.trim()).ok();
    std::os::unix::fs::FileExt::write_all_at(&kept, b"still open", 0).unwrap();
    kept.sync_all().unwrap();
    assert_eq!(fs::read_to_string(cluster.mount(0).join("kept")).unwrap(), "still open");
    let worked = load.stop();
    load::verify(&worked, cluster.mount(1));
}

/// A metadata target is declared lost for good; the others go on without it. It comes back, is refused, and is admitted.
#[test]
fn a_lost_metadata_target_is_declared_and_admitted_again() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("a metadata target is declared lost and admitted again", Duration::from_secs(120));
    let mut cluster = Cluster::with_mdts(&story, 3);
    let mount = cluster.mount(0).to_path_buf();
    for index in ["1", "2"] {
        adamant(["lfs", "mkdir", "-i", index]).arg(mount.join(format!("on{index}"))).ok();
    }
    adamant(["lfs", "mkdir", "-i", "1"]).arg(mount.join("lost")).ok();
    fs::write(mount.join("on1/file"), "text").unwrap();
    e2e::command("sync").arg("-f").arg(&mount).run().ok();
    let other = cluster.mount(1).to_path_buf();
    let rename_over_two = |name: &str| {
        fs::write(mount.join(name), name).unwrap();
        fs::rename(mount.join(name), mount.join("on2").join(name)).unwrap();
        assert_eq!(fs::read_to_string(other.join("on2").join(name)).unwrap(), name);
    };
    rename_over_two("before");
    let lost = format!("{}-MDT0001", cluster.fsname);
    let declare = || adamant(["lctl", "--device", &lost, "abort_recovery_mdt"]);
    declare().run().refused_with(&["is running"]);

    cluster.kill9(Which::Mdt(1));
    let says = declare().ok();
    assert!(says.contains(&lost) && says.contains("abort_recov_mdt"), "{says}");
    assert_eq!(declare().ok(), says, "it is lost already");
    for which in [Which::Mdt(0), Which::Mdt(2)] {
        wait_for("nothing is in doubt", || cluster.get_on(which, "mdt.*.changes_in_doubt").is_empty());
        wait_for("the loss is known", || cluster.server_log(which).contains("MDT0001 was declared lost for good"));
    }
    rename_over_two("without");
    adamant(["lfs", "rm_entry"]).arg(mount.join("lost")).ok();
    assert!(!other.join("lost").exists());
    fs::write(mount.join("plain"), "text").unwrap();
    adamant(["lfs", "rm_entry"]).arg(mount.join("plain")).run().refused_with(&["use rm"]);
    adamant(["lfs", "mkdir", "-i", "1"]).arg(mount.join("more")).run().refused_with(&["MDT0001 was declared lost"]);
    // What was declared stays so when the others start again.
    for which in [Which::Mdt(0), Which::Mdt(2)] {
        cluster.kill9(which);
        cluster.restart(which);
    }
    rename_over_two("after their restart");

    cluster.restart_fails(Which::Mdt(1), &[]).refused_with(&["was declared lost", "-o abort_recov_mdt"]);
    cluster.restart_with(Which::Mdt(1), &["-o", "abort_recov_mdt"]);
    wait_for("it is admitted", || cluster.server_log(Which::Mdt(1)).contains("is admitted again"));
    wait_for("changes have parts there again", || {
        adamant(["lfs", "mkdir", "-i", "1"]).arg(mount.join("again")).run().code == Some(0)
    });
    assert_eq!(fs::read_to_string(cluster.mount(1).join("on1/file")).unwrap(), "text");
    cluster.stop(Which::Mdt(1));
    cluster.restart(Which::Mdt(1));
    fs::rename(mount.join("on1/file"), mount.join("again/file")).unwrap();
    fs::rename(mount.join("again/file"), mount.join("on2/file")).unwrap();
    assert_eq!(fs::read_to_string(cluster.mount(1).join("on2/file")).unwrap(), "text");
}

/// `.lustre`: sanity 154A, 154B, 154a, 154b, 154e. Programs that work in a directory by its path notice nothing of others that
/// reach it by its FID.
#[test]
fn objects_are_opened_by_their_fids() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("objects by their FIDs", Duration::from_secs(120));
    let cluster = Cluster::with_mdts(&story, 2);
    let (mount, other) = (cluster.mount(0).to_path_buf(), cluster.mount(1).to_path_buf());
    let far = mount.join("far");
    adamant(["lfs", "mkdir", "-i", "1"]).arg(&far).ok();
    fs::create_dir_all(far.join("sub/deep")).unwrap();
    fs::write(far.join("file"), "text").unwrap();
    fs::write(mount.join("near"), "near").unwrap();
    let fid = |path: &std::path::Path| adamant(["lfs", "path2fid"]).arg(path).ok().trim().to_owned();
    let (dir_fid, file_fid, near_fid) = (fid(&far), fid(&far.join("file")), fid(&mount.join("near")));
    let names = |path: &std::path::Path| {
        let names = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    };
    let shell = |text: &str| e2e::command("sh").args(["-c", text]).run();
    let eperm = Some(rustix::io::Errno::PERM.raw_os_error());

    for root in [&mount, &other] {
        assert_eq!(names(root), ["far", "near"]);
        assert_eq!(names(&root.join(".lustre")), ["fid", "lost+found"]);
        assert!(names(&root.join(".lustre/fid")).is_empty());
        let by_fid = root.join(".lustre/fid");
        assert_eq!(fs::read_to_string(by_fid.join(&near_fid)).unwrap(), "near");
        assert_eq!(fs::read_to_string(by_fid.join(&file_fid)).unwrap(), "text");
        assert_eq!(names(&by_fid.join(&dir_fid)), ["file", "sub"]);
        assert_eq!(fs::read_to_string(by_fid.join(&dir_fid).join("file")).unwrap(), "text");
        for (path, same) in [(by_fid.join(&dir_fid), root.join("far")), (by_fid.join(&near_fid), root.join("near"))] {
            assert_eq!(fid(&path), fid(&same));
            let inode = |path| std::os::unix::fs::MetadataExt::ino(&fs::symlink_metadata(path).unwrap());
            assert_eq!(inode(&path), inode(&same));
        }
        let absent = fs::metadata(by_fid.join("[0x200000400:0x1ff00:0x0]")).unwrap_err();
        assert_eq!(absent.kind(), std::io::ErrorKind::NotFound);
    }
    // A program is at work in the directory, by its path.
    let busy = shell(&format!(
        "cd {far}/sub && ls {mount}/.lustre/fid/'{dir_fid}'/sub >/dev/null && ls {mount}/.lustre/fid/'{sub}' >/dev/null && \
         find {mount}/.lustre/fid/'{dir_fid}' >/dev/null && /bin/pwd && cat ../file && cd deep && /bin/pwd && cd ../.. && ls",
        far = far.display(),
        mount = mount.display(),
        sub = fid(&far.join("sub")),
    ));
    assert_eq!(busy.ok(), format!("{0}/sub\ntext{0}/sub/deep\nfile\nsub\n", far.display()));

    // Nothing there is made, removed or renamed, by whatever mount.
    let by_fid = mount.join(".lustre/fid");
    for refused in [
        fs::remove_file(by_fid.join(&near_fid)),
        fs::rename(by_fid.join(&near_fid), mount.join("x")),
        fs::rename(mount.join("near"), by_fid.join("x")),
        fs::rename(mount.join("near"), mount.join(".lustre/x")),
        fs::write(by_fid.join("new"), "x"),
        fs::create_dir(mount.join(".lustre/new")),
        fs::remove_dir(mount.join(".lustre")),
        fs::remove_dir(mount.join(".lustre/lost+found")),
        fs::rename(mount.join(".lustre"), mount.join("x")),
        fs::set_permissions(mount.join(".lustre"), std::os::unix::fs::PermissionsExt::from_mode(0o777)),
    ] {
        assert_eq!(refused.unwrap_err().raw_os_error(), eperm);
    }
    assert_eq!(fs::create_dir(mount.join(".lustre")).unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    fs::hard_link(by_fid.join(&near_fid), mount.join("link")).unwrap();
    assert_eq!(fs::read_to_string(other.join("link")).unwrap(), "near");

    // What is done in the directory is done, and the path shows it.
    fs::write(by_fid.join(&dir_fid).join("by fid"), "more").unwrap();
    fs::create_dir(by_fid.join(&dir_fid).join("made")).unwrap();
    fs::rename(by_fid.join(&dir_fid).join("sub"), by_fid.join(&dir_fid).join("renamed")).unwrap();
    assert_eq!(names(&far), ["by fid", "file", "made", "renamed"]);
    assert_eq!(names(&other.join("far")), ["by fid", "file", "made", "renamed"]);
    wait_for("the kernel has dropped the name", || !far.join("sub").exists());
    // Its path changes, and its FID does not.
    fs::rename(&far, mount.join("moved")).unwrap();
    assert_eq!(fs::read_to_string(by_fid.join(&dir_fid).join("by fid")).unwrap(), "more");
    assert_eq!(adamant(["lfs", "fid2path"]).arg(&mount).arg(&dir_fid).ok(), "/moved\n");
    assert_eq!(adamant(["lfs", "fid2path"]).arg(&mount).arg(fid(&mount.join(".lustre/fid"))).ok(), "/.lustre/fid\n");
    fs::remove_dir_all(mount.join("moved")).unwrap();
    let gone = fs::metadata(by_fid.join(&dir_fid)).unwrap_err();
    assert_eq!(gone.kind(), std::io::ErrorKind::NotFound);
    // The root by its FID, and no walk enters `.lustre` by itself.
    assert_eq!(names(&by_fid.join("[0x200000007:0x1:0x0]")), ["link", "near"]);
    assert_eq!(shell(&format!("find {} | wc -l", mount.display())).ok().trim(), "3");
}
