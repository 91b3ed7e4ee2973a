//! Stories of full targets: what a program was told is written is not lost in silence.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use client::api::{Answer, Call, Event, FileHandle};
use proto::{Bytes, Errno, Frame, Opcode};
use stdx::{Rng, marks};
use testkit::cluster::{self, Cluster, cred};

const MIB: u64 = 1 << 20;

/// A cluster with one mount and a file of 1 MiB on the object target.
fn with_file() -> (Cluster, usize, u64, FileHandle) {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let (stat, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, &vec![1; MIB as usize]).unwrap();
    c.call(a, Call::Fsync { fh }).unwrap();
    (c, a, stat.ino, fh)
}

fn fsync(c: &mut Cluster, node: usize, fh: FileHandle) -> Result<(), Errno> {
    c.call(node, Call::Fsync { fh }).map(drop)
}

fn flush(c: &mut Cluster, node: usize, fh: FileHandle) -> Result<(), Errno> {
    c.call(node, Call::Flush { fh, lock_owner: 1 }).map(drop)
}

fn errors(c: &Cluster, text: &str) -> usize {
    c.log.iter().filter(|line| line.contains("Error") && line.contains(text)).count()
}

#[test]
fn what_cannot_be_written_is_kept_told_and_written_when_there_is_room() {
    let (mut c, a, _, fh) = with_file();
    c.write(a, fh, 0, &[2; 8192]).unwrap();
    c.write(a, fh, MIB, &[2; 8192]).unwrap();
    // Somebody else fills the disk that had room for this.
    c.set_capacity("fs-OST0000", 0);
    c.pass(Duration::from_secs(20));
    assert!(marks::count("write_back_fails") > 1);
    assert_eq!(errors(&c, "cannot be written back to fs-OST0000"), 1, "once, not at each try: {:?}", c.log);
    let params = c.nodes[a].machine.get_params("llite.*.unwritable");
    assert_eq!(params[0].1, "/f: No space left on device");
    assert_eq!(flush(&mut c, a, fh), Err(Errno::ENOSPC), "told at close");
    assert_eq!(fsync(&mut c, a, fh), Err(Errno::ENOSPC));
    assert_eq!(fsync(&mut c, a, fh), Err(Errno::ENOSPC), "for as long as it is so");
    assert_eq!(c.call(a, Call::Syncfs), Err(Errno::ENOSPC), "not all is durable");
    assert_eq!(c.write(a, fh, 0, &[3; 10]), Err(Errno::ENOSPC), "told at the next write");
    assert_eq!(c.read(a, fh, MIB, 10).unwrap()[..], [2; 10], "and it is there");

    c.set_capacity("fs-OST0000", 100 * MIB);
    c.pass(Duration::from_secs(40));
    let params = c.nodes[a].machine.get_params("llite.*.unwritable");
    assert_eq!(params[0].1, "");
    fsync(&mut c, a, fh).unwrap();
    assert_eq!(c.call(a, Call::Syncfs), Ok(Answer::Done));
    flush(&mut c, a, fh).unwrap();
    c.close(a, fh).unwrap();
    let b = c.mount();
    let ino = c.lookup(b, 1, "f").unwrap().ino;
    let fh = c.open(b, ino, 0).unwrap();
    assert_eq!(c.read(b, fh, MIB, 8192).unwrap()[..], [2; 8192]);
    assert_eq!(errors(&c, "lost"), 0);
}

#[test]
fn a_lock_that_is_called_back_goes_in_time_and_only_its_unwritable_bytes_are_lost() {
    let (mut c, a, _, fh) = with_file();
    c.write(a, fh, MIB, &[2; 8192]).unwrap();
    c.set_capacity("fs-OST0000", 0);
    c.pass(Duration::from_secs(10));
    let _ = flush(&mut c, a, fh);
    let b = c.mount();
    let ino = c.lookup(b, 1, "f").unwrap().ino;
    let other = c.open(b, ino, 0).unwrap();
    let before = c.now;
    assert_eq!(c.read(b, other, 0, 10).unwrap()[..], [1; 10], "what was written is there");
    assert!(c.now.since(before) < Duration::from_secs(5), "nobody waits for a full disk");
    assert_eq!(marks::count("write_back_gives_up"), 1);
    assert_eq!(
        errors(&c, "are lost (its lock was called back: No space left on device): 1048576..1056768"),
        1,
        "{:?}",
        c.log
    );
    assert_eq!(errors(&c, "8192 bytes of '/f' [0x"), 1, "{:?}", c.log);
    assert_eq!(flush(&mut c, a, fh), Err(Errno::ENOSPC));
    assert!(!c.log.iter().any(|line| line.contains("evict")), "{:?}", c.log);
}

#[test]
fn memory_that_is_full_of_what_cannot_be_written_holds_up_no_other_write() {
    let mut c = Cluster::new(2);
    let a = c.begin_mount(client::Options { max_dirty: 2 * MIB, ..Cluster::options(1) });
    c.until(|c| c.nodes[a].mounted);
    // Files of 1 MiB, on the one target and on the other.
    let mut on: [Vec<FileHandle>; 2] = [Vec::new(), Vec::new()];
    for i in 0..8 {
        let (stat, fh) = c.create(a, 1, &format!("f{i}")).unwrap();
        c.write(a, fh, 0, &vec![1; MIB as usize]).unwrap();
        fsync(&mut c, a, fh).unwrap();
        match c.call(a, Call::GetLayout { ino: stat.ino }).unwrap() {
            Answer::Layout(Some(layout)) => on[layout.osts[0] as usize].push(fh),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(on[0].len(), 4);
    c.set_capacity("fs-OST0000", 0);
    for fh in &on[0][..3] {
        c.write(a, *fh, MIB, &vec![2; 600 << 10]).unwrap();
    }
    c.pass(Duration::from_secs(20));
    let before = c.now;
    assert_eq!(c.write(a, on[0][3], MIB, &vec![2; 600 << 10]), Err(Errno::ENOSPC));
    c.write(a, on[1][0], 0, &vec![3; 600 << 10]).unwrap();
    assert!(c.now.since(before) < Duration::from_secs(5));
    assert!(marks::count("memory_full_of_unwritable") > 0);
}

#[test]
fn small_files_go_to_object_targets_when_their_metadata_target_has_no_room() {
    small_files(true);
    small_files(false);
}

fn small_files(sync_metadata: bool) {
    let mut c = Cluster::new(1);
    let a = c.begin_mount(client::Options { sync_metadata, ..Cluster::options(7) });
    c.until(|c| c.nodes[a].mounted);
    c.set_store_room("fs-MDT0000", 20 * MIB);
    let data = vec![7; 60_000];
    let mut told = Vec::new();
    for i in 0..600 {
        let name = format!("f{i}");
        let result = c.create(a, 1, &name).and_then(|(_, fh)| {
            let written = c.write(a, fh, 0, &data).map(drop);
            let flushed = flush(&mut c, a, fh);
            c.close(a, fh).unwrap();
            written.and(flushed)
        });
        told.push((name, result));
    }
    let done = told.iter().filter(|(_, result)| result.is_ok()).count();
    assert!(done > 500, "{done} of 600 files, 36 MB");
    assert!(marks::count("leave_for_room") > 0);
    let b = c.mount();
    for (name, result) in &told {
        let Ok(stat) = c.lookup(b, 1, name) else {
            assert!(result.is_err(), "{name} is gone, and nobody was told");
            continue;
        };
        let fh = c.open(b, stat.ino, 0).unwrap();
        let whole = c.read(b, fh, 0, 60_000).unwrap() == data;
        assert!(whole || result.is_err(), "{name} is {} bytes long, and nobody was told", stat.size);
        c.close(b, fh).unwrap();
    }
    assert_eq!(errors(&c, "lost"), 0, "{:?}", c.log.last());
}

#[test]
fn a_nearly_full_target_that_restarts_takes_what_it_had_promised() {
    let (mut c, a, _, fh) = with_file();
    // What is left is less than what the client has buffered: it was promised before.
    c.write(a, fh, MIB, &vec![2; 900 * 1024]).unwrap();
    c.set_store_room("fs-OST0000", 2 * MIB);
    c.restart("fs-OST0000");
    c.pass(Duration::from_secs(1));
    let b = c.mount();
    let (_, other) = c.create(b, 1, "g").unwrap();
    let _ = c.write(b, other, 0, &vec![3; 2 * MIB as usize]);
    let _ = flush(&mut c, b, other);
    fsync(&mut c, a, fh).unwrap();
    assert_eq!(c.read(a, fh, MIB, 10).unwrap()[..], [2; 10]);
}

/// The answer to an appending write is lost, and when it is asked for again, the target's disk is full. To be refused now would make the
/// program append the same once more.
#[test]
fn what_was_written_is_not_refused_when_its_answer_is_asked_for_again() {
    let (mut c, a, ino, _) = with_file();
    let fh = c.open(a, ino, 0o4_012_001).unwrap();
    let deaf = Rc::new(Cell::new(true));
    let lose = deaf.clone();
    c.tamper = Some(Box::new(move |to_client, _, frame: Frame| {
        let reply = to_client && Opcode::from_raw(frame.header.opcode) == Some(Opcode::ObjWrite);
        if reply && lose.get() { Vec::new() } else { vec![frame] }
    }));
    let data = vec![2; 8192].into();
    let write = c.send(a, Call::Write { fh, ino: 0, offset: 0, data, write_back: false, kill_priv: false });
    c.pass(Duration::from_secs(1));
    assert!(!c.answered(a, write));
    c.fill_store("fs-OST0000", 8 << 20);
    deaf.set(false);
    c.cut(a);
    assert_eq!(c.answer(a, write), Ok(Answer::Written(8192)));
    assert_eq!(c.getattr(a, ino).unwrap().size, MIB + 8192);
    let data = vec![3; 8192].into();
    let write = Call::Write { fh, ino: 0, offset: 0, data, write_back: false, kill_priv: false };
    assert_eq!(c.call(a, write), Err(Errno::ENOSPC), "the disk is full");
}

#[test]
fn what_was_written_before_a_restart_is_written_again_when_the_disk_has_space() {
    let (mut c, a, ino, fh) = with_file();
    let b = c.mount();
    let other = c.open(b, ino, 0).unwrap();
    c.write(a, fh, MIB, &[2; 8192]).unwrap();
    // The target has answered the write, and loses it.
    assert_eq!(c.read(b, other, MIB, 10).unwrap()[..], [2; 10]);
    c.set_capacity("fs-OST0000", 0);
    c.restart("fs-OST0000");
    c.pass(Duration::from_secs(5));
    assert!(marks::count("target.replay_waits_for_space") > 0);
    c.set_capacity("fs-OST0000", 100 * MIB);
    c.pass(Duration::from_secs(5));
    fsync(&mut c, a, fh).unwrap();
    let ino = c.lookup(b, 1, "f").unwrap().ino;
    let other = c.open(b, ino, 0).unwrap();
    assert_eq!(c.read(b, other, MIB, 8192).unwrap()[..], [2; 8192]);
    assert!(!c.log.iter().any(|line| line.contains("evicts") || line.contains("are lost")), "{:?}", c.log);
}

/// A disk that fails once while changes are done again costs nobody anything.
#[test]
fn what_was_written_before_a_restart_is_written_again_when_the_disk_has_failed_once() {
    let (mut c, a, ino, fh) = with_file();
    let b = c.mount();
    let other = c.open(b, ino, 0).unwrap();
    c.write(a, fh, MIB, &[2; 8192]).unwrap();
    assert_eq!(c.read(b, other, MIB, 10).unwrap()[..], [2; 10]);
    c.fail_next("fs-OST0000", Errno::EIO);
    c.restart("fs-OST0000");
    c.pass(Duration::from_secs(5));
    fsync(&mut c, a, fh).unwrap();
    assert_eq!(c.read(b, other, MIB, 8192).unwrap()[..], [2; 8192]);
    assert!(!c.log.iter().any(|line| line.contains("evicts") || line.contains("are lost")), "{:?}", c.log);
}

#[test]
fn the_end_of_a_mount_gives_up_after_a_while_and_says_so() {
    let (mut c, a, _, fh) = with_file();
    c.write(a, fh, MIB, &[2; 8192]).unwrap();
    c.set_capacity("fs-OST0000", 0);
    c.pass(Duration::from_secs(10));
    let now = c.now;
    c.nodes[a].machine.handle(now, Event::Unmount);
    let before = c.now;
    c.until(|c| c.nodes[a].unmounted);
    assert!(c.now.since(before) < Duration::from_secs(60));
    assert_eq!(errors(&c, "8192 bytes of '/f'"), 1, "{:?}", c.log);
    assert_eq!(c.nodes[a].lost, Some(Errno::ENOSPC));
}

#[test]
fn the_data_of_a_removed_file_goes_in_silence() {
    let (mut c, a, _, fh) = with_file();
    c.write(a, fh, MIB, &[2; 8192]).unwrap();
    c.set_capacity("fs-OST0000", 0);
    c.unlink(a, 1, "f").unwrap();
    c.close(a, fh).unwrap();
    c.pass(Duration::from_secs(40));
    assert_eq!(errors(&c, "lost"), 0, "{:?}", c.log);
    let params = c.nodes[a].machine.get_params("llite.*.unwritable");
    assert_eq!(params[0].1, "");
}

/// The answer to an unlink may be lost with its server. The server that starts again knows that it was done, not what became of
/// the object.
#[test]
fn the_data_of_a_file_whose_removal_was_answered_twice_goes_in_silence() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let (_, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, &[1; 20_000]).unwrap();
    c.close(a, fh).unwrap();
    c.tamper = Some(Box::new(|to_client, _, frame| if to_client { vec![] } else { vec![frame] }));
    let unlink = c.send(a, Call::Unlink { parent: 1, name: cluster::name("f") });
    c.pass(Duration::from_millis(500));
    c.kill(c.server("fs-MDT0000"));
    c.tamper = None;
    c.restart("fs-MDT0000");
    c.until(|c| c.answered(a, unlink));
    c.answer(a, unlink).unwrap();
    c.pass(Duration::from_secs(40));
    assert!(marks::count("write_back_of_removed") > 0);
    assert_eq!(errors(&c, "lost"), 0, "{:?}", c.log);
}

/// Bytes of a file that somebody has open, and whose object is not there any more, are lost to him: he is told.
#[test]
fn the_data_of_an_open_file_without_its_object_is_said_to_be_lost() {
    let (mut c, a, _, fh) = with_file();
    c.tamper = Some(Box::new(|to_client, _, mut frame| {
        if to_client && frame.header.opcode == Opcode::ObjWrite as u16 {
            (frame.header.status, frame.body) = (-Errno::ESTALE.raw(), Bytes::new());
        }
        vec![frame]
    }));
    c.write(a, fh, MIB, &[2; 8192]).unwrap();
    assert_eq!(c.call(a, Call::Fsync { fh }), Err(Errno::EIO));
    assert_eq!(errors(&c, "8192 bytes of '/f'"), 1, "{:?}", c.log);
}

/// Each write back says how large the object is with all that its client has, not with what it brings: who asks for the size meanwhile is told
/// so.
#[test]
fn what_is_written_back_says_how_large_the_object_is() {
    let (mut c, a, _, fh) = with_file();
    let said = Rc::new(Cell::new(Vec::new()));
    let out = said.clone();
    c.tamper = Some(Box::new(move |to_client, _, frame| {
        if !to_client && frame.header.opcode == Opcode::ObjWrite as u16 {
            let request = frame.decode::<proto::msg::WriteReq>().unwrap();
            let mut all = out.take();
            all.push((request.offset, request.lvb.unwrap().size));
            out.set(all);
        }
        vec![frame]
    }));
    c.write(a, fh, 0, &[2; 4096]).unwrap();
    c.write(a, fh, 4 * MIB, &[3; 4096]).unwrap();
    c.call(a, Call::Fsync { fh }).unwrap();
    assert_eq!(said.take(), [(0, 4 * MIB + 4096), (4 * MIB, 4 * MIB + 4096)]);
}

/// A file in stripes of 64 KiB over all targets, of so many bytes, opened with these flags.
fn striped(c: &mut Cluster, node: usize, size: usize, flags: u32) -> (u64, FileHandle) {
    let (stat, fh) = c.create(node, 1, "striped").unwrap();
    c.call(node, Call::SetLayout { ino: stat.ino, wish: cluster::wish(64 << 10, -1, 0) }).unwrap();
    c.write(node, fh, 0, &vec![1; size]).unwrap();
    fsync(c, node, fh).unwrap();
    (stat.ino, c.open(node, stat.ino, flags).unwrap())
}

#[test]
fn a_write_that_a_full_target_cuts_short_leaves_nothing_behind_its_end() {
    const O_RDWR: u32 = 2;
    const O_APPEND: u32 = 0o2000;
    const O_SYNC: u32 = 0o401_0000;
    // Space may have been promised, when others take it: then only what is appended is safe.
    for (promised, flags) in [(false, O_RDWR | O_SYNC), (true, O_RDWR | O_SYNC | O_APPEND)] {
        let mut c = Cluster::new(3);
        if !promised {
            c.set_capacity("fs-OST0001", 0);
            c.set_free("fs-OST0001", 0);
        }
        let a = c.mount();
        let (ino, fh) = striped(&mut c, a, if promised { 192 << 10 } else { 64 << 10 }, flags);
        c.set_capacity("fs-OST0001", if promised { 64 << 10 } else { 0 });
        let at = c.getattr(a, ino).unwrap().size;
        // Its first half goes to OST0000, then to the full one, then to OST0002.
        let from = if promised { at } else { 0 };

        let written = c.write(a, fh, from, &vec![2; 192 << 10]);
        assert_eq!(written, Ok(64 << 10), "promised: {promised}");
        assert_eq!(c.getattr(a, ino).unwrap().size, at.max(from + (64 << 10)), "promised: {promised}");
        assert_eq!(c.write(a, fh, from + (64 << 10), &[3; 100]), Err(Errno::ENOSPC));
        c.set_capacity("fs-OST0001", 100 * MIB);
        c.set_free("fs-OST0001", 100 * MIB);
        c.pass(Duration::from_secs(20));
        let rest = from + (64 << 10);
        assert_eq!(c.write(a, fh, rest, &vec![2; 128 << 10]), Ok(128 << 10));
        let b = c.mount();
        let fh = c.open(b, ino, 0).unwrap();
        assert_eq!(c.read(b, fh, from, 192 << 10).unwrap()[..], vec![2; 192 << 10]);
        assert_eq!(c.getattr(b, ino).unwrap().size, from + (192 << 10));
    }
}

/// One of two targets has no space: the other has made its part of the file longer, and everybody sees that.
#[test]
fn where_space_is_made_on_one_target_only_all_see_the_same_size() {
    let mut c = Cluster::new(2);
    let (a, b) = (c.mount(), c.mount());
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.call(a, Call::SetLayout { ino: f.ino, wish: cluster::wish(64 << 10, -1, 0) }).unwrap();
    c.write(a, fh, 0, &vec![1; 256 << 10]).unwrap();
    fsync(&mut c, a, fh).unwrap();
    c.fail_next("fs-OST0001", Errno::EIO);
    let allocate = Call::Fallocate { fh, mode: 0, offset: 256 << 10, length: 128 << 10 };
    assert_eq!(c.call(a, allocate), Err(Errno::EIO));
    let size = |c: &mut Cluster, node| c.getattr(node, f.ino).map(|stat| stat.size);
    let here = size(&mut c, a);
    assert_eq!(c.read(a, fh, 256 << 10, 256 << 10).map(|data| data.len() as u64 + (256 << 10)), here);
    assert!(c.lookup(b, 1, "f").is_ok());
    assert_eq!(size(&mut c, b), here);
}

/// What could not be written is written now. That more is dirty by then, which has never failed, is no error.
#[test]
fn a_sync_hears_nothing_of_a_disk_that_has_room_again() {
    let (mut c, a, ino, fh) = with_file();
    c.write(a, fh, MIB, &[2; 8192]).unwrap();
    c.set_capacity("fs-OST0000", 0);
    c.pass(Duration::from_secs(20));
    assert_eq!(fsync(&mut c, a, fh), Err(Errno::ENOSPC));
    c.set_capacity("fs-OST0000", 100 * MIB);
    // The file goes on growing, by pages that a program has mapped.
    let more = |offset| {
        let data = Bytes::from_static(&[3; 4096]);
        Call::Write { fh, ino, offset, data, write_back: true, kill_priv: false }
    };
    let sent = |c: &Cluster| c.all_requests.get(Opcode::ObjWrite.name()).copied().unwrap_or(0);
    let before = sent(&c);
    let sync = c.send_quietly(a, cred(0), Call::Fsync { fh });
    let second = c.send_quietly(a, cred(0), more(2 * MIB));
    let mut rng = Rng::new(1);
    while sent(&c) < before + 2 {
        c.one_step(&mut rng);
    }
    let third = c.send_quietly(a, cred(0), more(3 * MIB));
    assert_eq!(c.answer(a, third), Ok(Answer::Written(4096)));
    assert_eq!(c.answer(a, second), Ok(Answer::Written(4096)));
    assert_eq!(c.answer(a, sync), Ok(Answer::Done));
    assert_eq!(fsync(&mut c, a, fh), Ok(()));
}
