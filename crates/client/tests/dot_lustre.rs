//! `.lustre`, and objects by their FIDs below `.lustre/fid`, over two metadata targets.

use std::time::Duration;

use client::api::{ALIAS, Answer, Call, Event, Invalidation, NewDir, Options, SetStat, Stat, object_number};
use prost::Message;
use proto::msg::{GetattrReq, Reint, ReintReq};
use proto::{Errno, Fid, Opcode};
use testkit::cluster::{Cluster, cred, name};

/// A file system with two metadata targets and a mount.
fn cluster() -> (Cluster, usize) {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let mdt1 = c.add_server("fs-MDT0001");
    c.start(mdt1);
    c.pass(Duration::from_secs(2));
    (c, a)
}

/// A directory on MDT0001 with the name `text` in the root.
fn remote(c: &mut Cluster, at: usize, text: &str) -> Fid {
    match c
        .call(at, Call::MkdirOn { parent: 1, name: name(text), mode: 0o755, wish: NewDir { mdts: vec![1], hash: 0 } })
        .unwrap()
    {
        Answer::Fid(fid) => fid,
        other => panic!("{other:?}"),
    }
}

fn fid(stat: &Stat) -> Fid {
    Fid::from_ino(object_number(stat.ino)).unwrap()
}

/// Looks an object up by its FID.
fn by_fid(c: &mut Cluster, at: usize, fid: Fid) -> Result<Stat, Errno> {
    let parent = c.walk(at, ".lustre/fid")?;
    c.lookup(at, parent, &fid.to_string())
}

fn paths(c: &mut Cluster, at: usize, fid: Fid) -> Vec<String> {
    match c.call(at, Call::FidToPath { fid }).unwrap() {
        Answer::Paths(paths) => paths.iter().map(|path| String::from_utf8(path.to_vec()).unwrap()).collect(),
        other => panic!("{other:?}"),
    }
}

/// sanity 154e.
#[test]
fn the_root_does_not_list_it_and_every_mount_finds_it() {
    let (mut c, a) = cluster();
    c.mkdir(a, 1, "dir").unwrap();
    let b = c.mount();
    for at in [a, b] {
        let listed = [".", "..", "dir"];
        assert_eq!(c.list(at, 1, true).unwrap(), listed);
        let found = c.lookup(at, 1, ".lustre").unwrap();
        assert_eq!((found.ino, found.mode, found.nlink), (Fid::DOT_LUSTRE.ino(), 0o040_555, 4));
        assert_eq!(c.list(at, 1, false).unwrap(), listed);
        assert_eq!(c.getattr(at, 1).unwrap().nlink, 3);
        let mut inside = c.list(at, found.ino, true).unwrap();
        inside.sort();
        assert_eq!(inside, [".", "..", "fid", "lost+found"]);
        let by_fid = c.lookup(at, found.ino, "fid").unwrap();
        assert_eq!((by_fid.ino, by_fid.mode), (Fid::DOT_LUSTRE_FID.ino(), 0o040_111));
        assert_eq!(c.list(at, by_fid.ino, true).unwrap(), [".", ".."]);
        assert_eq!(c.lookup(at, found.ino, "lost+found").unwrap().mode, 0o040_700);
        assert_eq!(paths(&mut c, at, Fid::LOST_FOUND), [".lustre/lost+found"]);
    }
}

/// sanity 154A, 154B, 154b: whatever target an object lies on, and from another mount.
#[test]
fn a_fid_opens_the_object_on_its_metadata_target() {
    let (mut c, a) = cluster();
    let dir = remote(&mut c, a, "far");
    let (near, fh) = c.create(a, 1, "near").unwrap();
    c.write(a, fh, 0, b"here").unwrap();
    let (far, fh) = c.create(a, dir.ino(), "file").unwrap();
    c.write(a, fh, 0, b"there").unwrap();
    c.call(a, Call::Syncfs).unwrap();
    let b = c.mount();
    for (stat, text, path) in [(&near, "here", "near"), (&far, "there", "far/file")] {
        let found = by_fid(&mut c, b, fid(stat)).unwrap();
        assert_eq!((found.ino, found.size), (stat.ino, text.len() as u64));
        assert!(!found.cacheable && !found.entry_cacheable, "the next one may not open by FID");
        let fh = c.open(b, found.ino, 0).unwrap();
        assert_eq!(c.read(b, fh, 0, 10).unwrap(), text);
        assert_eq!(c.call(b, Call::PathToFid { ino: found.ino }), Ok(Answer::Fid(fid(stat))));
        assert_eq!(paths(&mut c, b, fid(stat)), [path]);
        // As `lfs path2fid` prints it, and without the brackets.
        let parent = c.walk(b, ".lustre/fid").unwrap();
        let bare = fid(stat).to_string().replace(['[', ']'], "");
        assert_eq!(c.lookup(b, parent, &bare).unwrap().ino, stat.ino);
    }
    c.call(b, Call::Link { ino: far.ino, new_parent: 1, new_name: name("link") }).unwrap();
    assert_eq!(c.lookup(a, 1, "link").unwrap().nlink, 2);
}

/// The kernel has one place for each directory, and that stays where its name is.
#[test]
fn a_directory_has_another_node_there() {
    let (mut c, a) = cluster();
    let dir = remote(&mut c, a, "far");
    c.create(a, dir.ino(), "file").unwrap();
    c.mkdir(a, dir.ino(), "sub").unwrap();
    let before = c.lookup(a, 1, "far").unwrap();
    assert_eq!(before.ino, dir.ino());
    let alias = by_fid(&mut c, a, dir).unwrap();
    assert_eq!((alias.ino, alias.nlink, alias.cacheable), (dir.ino() | ALIAS, 3, false));
    assert_eq!(c.getattr(a, alias.ino).unwrap().nlink, 3);
    let mut inside = c.list(a, alias.ino, true).unwrap();
    inside.sort();
    assert_eq!(inside, [".", "..", "file", "sub"]);
    assert!(c.listed.iter().all(|entry| entry.stat.is_none() && entry.ino & ALIAS == 0), "{:?}", c.listed);
    let (file, sub) = (c.lookup(a, alias.ino, "file").unwrap(), c.lookup(a, alias.ino, "sub").unwrap());
    assert_eq!((file.ino & ALIAS, sub.ino & ALIAS), (0, ALIAS));
    assert_eq!(c.call(a, Call::PathToFid { ino: sub.ino }), Ok(Answer::Fid(fid(&sub))));
    assert_eq!(c.call(a, Call::MdtIndex { ino: alias.ino }), Ok(Answer::Index(1)));
    // What is done there is done, and the kernel is told what that means for the directory's own node.
    c.nodes[a].invalidations.clear();
    assert_eq!(c.mkdir(a, alias.ino, "new").unwrap().ino & ALIAS, ALIAS);
    c.unlink(a, alias.ino, "file").unwrap();
    let told = |text| Invalidation::Entry { token: 0, parent: dir.ino(), name: name(text) };
    assert!(
        ["new", "file"].into_iter().all(|text| c.nodes[a].invalidations.contains(&told(text))),
        "{:?}",
        c.nodes[a].invalidations
    );
    let mut names = c.list(a, dir.ino(), false).unwrap();
    names.sort();
    assert_eq!(names, [".", "..", "new", "sub"]);
    c.call(a, Call::Forget { ino: alias.ino, count: 5 }).unwrap();
    // Its own name moves, and its FID does not.
    c.call(a, Call::Rename { parent: 1, name: name("far"), new_parent: 1, new_name: name("moved"), flags: 0 }).unwrap();
    assert_eq!(by_fid(&mut c, a, dir).unwrap().ino, alias.ino);
    assert_eq!(paths(&mut c, a, dir), ["moved"]);
}

#[test]
fn the_root_and_its_hidden_directories_have_fids_too() {
    let (mut c, a) = cluster();
    c.mkdir(a, 1, "dir").unwrap();
    let root = by_fid(&mut c, a, Fid::ROOT).unwrap();
    assert_eq!(root.ino, 1 | ALIAS);
    assert_eq!(c.list(a, root.ino, true).unwrap(), [".", "..", "dir"]);
    assert_eq!(c.lookup(a, root.ino, ".lustre").unwrap().ino, Fid::DOT_LUSTRE.ino() | ALIAS);
    let lost = by_fid(&mut c, a, Fid::LOST_FOUND).unwrap();
    assert_eq!(lost.ino, Fid::LOST_FOUND.ino() | ALIAS);
}

#[test]
fn a_name_that_is_no_fid_of_an_object_does_not_exist() {
    let (mut c, a) = cluster();
    let (file, fh) = c.create(a, 1, "file").unwrap();
    let parent = c.walk(a, ".lustre/fid").unwrap();
    let names = [
        "none",
        "[0x1:0x2]",
        "[]",
        "[0x200000007:0x2:0x0]",
        "[0x200000001:0x1:0x0]",
        "[0x0:0x0:0x0]",
        "[0xa:0x0:0x0]",
        "[0x200000400:0x1fffe:0x0]",
        "[0x200000400:0x1:0x7]",
        "[0xffffffffff:0x1:0x0]",
        "0x200000403:0x9:0x0",
    ];
    for text in names {
        assert_eq!(c.lookup(a, parent, text), Err(Errno::ENOENT), "{text}");
    }
    // The same again sends no more than one request.
    assert_eq!(c.lookup(a, parent, "[0xffffffffff:0x1:0x0]"), Err(Errno::ENOENT));
    assert_eq!(c.sent(), 1);
    // Without a name it is gone, though it is open.
    c.unlink(a, 1, "file").unwrap();
    assert_eq!(by_fid(&mut c, a, fid(&file)), Err(Errno::ENOENT));
    c.close(a, fh).unwrap();
    assert_eq!(by_fid(&mut c, a, fid(&file)), Err(Errno::ENOENT));
}

/// A FID says nothing of the directories above its object, so only those may use it whom no directory stops.
#[test]
fn only_who_may_search_all_directories_opens_by_fid() {
    let (mut c, a) = cluster();
    let (file, _) = c.create(a, 1, "file").unwrap();
    let parent = c.walk(a, ".lustre/fid").unwrap();
    let lookup = |fid: Fid| Call::Lookup { parent, name: name(&fid.to_string()) };
    by_fid(&mut c, a, fid(&file)).unwrap();
    assert_eq!(c.call_as(a, 7, lookup(fid(&file))), Err(Errno::EPERM));
    assert_eq!(c.call_as(a, 7, lookup(Fid::new(Fid::SEQ_LAST, 1))), Err(Errno::EPERM));
    assert!(c.call_as(a, 7, Call::Lookup { parent: 1, name: name(".lustre") }).is_ok());
    let mut who = cred(7);
    who.capabilities = 1 << 2;
    let id = c.send_as(a, who, lookup(fid(&file)));
    assert!(c.answer(a, id).is_ok(), "CAP_DAC_READ_SEARCH");
}

/// sanity 154a.
#[test]
fn its_names_are_neither_made_nor_removed() {
    let (mut c, _) = cluster();
    let write_back = Options { sync_metadata: false, ..Cluster::options(20) };
    let a = c.begin_mount(write_back);
    c.until(|c| c.nodes[a].mounted);
    for number in 0..8 {
        c.mkdir(a, 1, &format!("d{number}")).unwrap();
    }
    let (file, _) = c.create(a, 1, "file").unwrap();
    let found = by_fid(&mut c, a, fid(&file)).unwrap();
    assert_eq!(found.ino, file.ino, "no server knows it yet");
    let refused = Err(Errno::EPERM);
    let text = fid(&file).to_string();
    let dir = c.walk(a, "d0").unwrap();
    let places = [
        (1, ".lustre"),
        (Fid::DOT_LUSTRE.ino(), "fid"),
        (Fid::DOT_LUSTRE.ino(), "x"),
        (Fid::DOT_LUSTRE_FID.ino(), "x"),
        (Fid::DOT_LUSTRE_FID.ino(), &text),
        (Fid::DOT_LUSTRE_FID.ino() | ALIAS, &text),
    ];
    for (parent, text) in places {
        let (name, new_name) = (name(text), name("y"));
        let calls = [
            Call::Mkdir { parent, name: name.clone(), mode: 0o755 },
            Call::Mknod { parent, name: name.clone(), mode: 0o100_644, rdev: 0 },
            Call::Symlink { parent, name: name.clone(), target: new_name.clone() },
            Call::Create { parent, name: name.clone(), mode: 0o644, flags: 0o102 },
            Call::MkdirOn { parent, name: name.clone(), mode: 0o755, wish: NewDir { mdts: vec![1], hash: 0 } },
            Call::Link { ino: file.ino, new_parent: parent, new_name: name.clone() },
            Call::Unlink { parent, name: name.clone() },
            Call::Rmdir { parent, name: name.clone() },
            Call::RemoveEntry { parent, name: name.clone() },
            Call::Rename { parent, name: name.clone(), new_parent: 1, new_name: new_name.clone(), flags: 0 },
            Call::Rename { parent: 1, name: self::name("d1"), new_parent: parent, new_name: name, flags: 0 },
        ];
        for call in calls {
            assert_eq!(c.call(a, call.clone()), refused, "{call:?}");
        }
    }
    for ino in [Fid::DOT_LUSTRE.ino(), Fid::DOT_LUSTRE_FID.ino()] {
        let set = SetStat { mode: Some(0o700), ..SetStat::default() };
        assert_eq!(c.call(a, Call::Setattr { ino, set }), refused);
        let value = name("1");
        assert_eq!(c.call(a, Call::Setxattr { ino, name: name("user.x"), value, flags: 0 }), refused);
    }
    c.mkdir(a, dir, ".lustre").unwrap();
    c.call(a, Call::Syncfs).unwrap();
    let b = c.mount();
    assert_eq!(c.list(b, 1, false).unwrap().len(), 2 + 8 + 1);
}

/// A server before version 0.3.0 has no such directories.
#[test]
fn an_older_metadata_target_has_no_such_name() {
    let (mut c, a) = cluster();
    c.tamper = Some(Box::new(|to_client, _, mut frame| {
        if !to_client && frame.header.opcode == Opcode::MdsGetattr as u16 {
            let mut asked = GetattrReq::decode(frame.body.clone()).unwrap();
            if asked.fid == Fid::DOT_LUSTRE {
                asked.fid = Fid::new(Fid::SEQ_FIRST, 0x1_0000);
                frame.body = asked.encode_to_vec().into();
            }
        }
        vec![frame]
    }));
    for _ in 0..2 {
        assert_eq!(c.lookup(a, 1, ".lustre"), Err(Errno::ENOENT));
    }
    assert_eq!(c.mkdir(a, 1, ".lustre"), Err(Errno::EPERM));
    c.tamper = None;
    c.lookup(a, 1, ".lustre").unwrap();
}

#[test]
fn an_object_of_a_target_that_is_away_is_waited_for() {
    let (mut c, a) = cluster();
    let dir = remote(&mut c, a, "far");
    let b = c.mount();
    let parent = c.walk(b, ".lustre/fid").unwrap();
    let mdt1 = c.server("fs-MDT0001");
    c.kill(mdt1);
    let lookup = || Call::Lookup { parent, name: name(&dir.to_string()) };
    let (killed, patient) = (c.send(b, lookup()), c.send(b, lookup()));
    c.pass(Duration::from_secs(3));
    assert!(!c.answered(b, killed) && !c.answered(b, patient));
    let now = c.now;
    c.nodes[b].machine.handle(now, Event::Abandon { id: killed });
    assert_eq!(c.answer(b, killed), Err(Errno::EINTR));
    c.start(mdt1);
    let Ok(Answer::Entry(found)) = c.answer(b, patient) else { panic!("not found") };
    assert_eq!(found.ino, dir.ino() | ALIAS);
}

/// An older version let a program make the name. Its rename is refused or done, and not both.
#[test]
fn a_name_that_an_older_version_has_made_can_be_renamed() {
    let (mut c, a) = cluster();
    let old = c.mkdir(a, 1, "old").unwrap();
    let rename = Call::Rename { parent: 1, name: name(".lustre"), new_parent: 1, new_name: name("new"), flags: 0 };
    assert_eq!(c.call(a, rename.clone()), Err(Errno::EPERM));
    // The server has that entry, under another name.
    c.tamper = Some(Box::new(|to_client, _, mut frame| {
        if !to_client && frame.header.opcode == Opcode::MdsReint as u16 {
            let mut asked = ReintReq::decode(frame.body.clone()).unwrap();
            if let Some(Reint::Rename(op)) = &mut asked.op {
                op.source_name = name("old");
                frame.body = asked.encode_to_vec().into();
            }
        }
        vec![frame]
    }));
    assert_eq!(c.call(a, rename.clone()), Ok(Answer::Done));
    c.tamper = None;
    assert_eq!(c.lookup(a, 1, "new").unwrap().ino, old.ino);
    assert_eq!(c.call(a, rename), Err(Errno::EPERM));
}
