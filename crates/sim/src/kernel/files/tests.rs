//! Tests of the stand-in's files: pages, signals, and deaths of clients.

use client::api::Stat;
use core::cell::RefCell;
use std::rc::Rc;
use stdx::Rng;

use super::*;
use crate::plan::Plan;
use crate::sched::Sched;

/// Two programs have modified one page through their mappings: one writes it back, the other waits for that.
#[test]
fn a_program_that_writes_a_mapping_dies_with_its_client() {
    let sched = Sched::new();
    let kernel = Kernel::new(sched.clone(), 0, &Plan::still(0), Rng::new(0));
    let fd = kernel.opened(7, FileHandle(1), 2, false, false);
    let results = Rc::new(RefCell::new(Vec::new()));
    for at in [0, 8] {
        let (kernel, fd, results) = (kernel.clone(), fd.clone(), results.clone());
        sched.spawn("a program", async move {
            let result = kernel.write_mapped(&Cred::default(), &fd, at, &Bytes::from_static(&[1; 8])).await;
            results.borrow_mut().push(result);
        });
    }
    let mut written = false;
    while !written {
        sched.run();
        let requests = sched.take_requests();
        assert!(!requests.is_empty());
        for request in requests {
            let answer = match request.call {
                Call::Getattr { .. } => Answer::Attr(Stat { ino: 7, size: PAGE, ..Stat::default() }),
                Call::Read { .. } => Answer::Data(Bytes::from_static(&[0; PAGE as usize])),
                Call::Write { .. } => {
                    written = true;
                    continue;
                }
                other => panic!("{other:?}"),
            };
            sched.answer(request.id, Ok(answer));
        }
    }
    kernel.die();
    sched.retire(0);
    sched.run();
    assert_eq!(*results.borrow(), [Err(Fail::Dead), Err(Fail::Dead)]);
}

/// The write-back of a dirty page fails: the error is reported to `msync`, and once to `fsync` of every other open file.
#[test]
fn a_failed_write_back_is_reported_to_every_open_file() {
    let sched = Sched::new();
    let kernel = Kernel::new(sched.clone(), 0, &Plan::still(0), Rng::new(0));
    let [fd, other] = [1, 2].map(|fh| kernel.opened(7, FileHandle(fh), 2, false, false));
    let results = Rc::new(RefCell::new(Vec::new()));
    let outcome = results.clone();
    sched.spawn("a program", async move {
        let (cred, data) = (Cred::default(), Bytes::from_static(&[1; 8]));
        let written = kernel.write_mapped(&cred, &fd, 0, &data).await;
        outcome.borrow_mut().push(written.map(drop));
        let late = kernel.opened(7, FileHandle(3), 2, false, false);
        for fd in [&fd, &other, &other, &late] {
            let synced = kernel.sync(&cred, fd).await;
            outcome.borrow_mut().push(synced);
        }
    });
    let mut syncs = 0;
    loop {
        sched.run();
        let requests = sched.take_requests();
        if requests.is_empty() {
            break;
        }
        for request in requests {
            let answer = match request.call {
                Call::Getattr { .. } => Ok(Answer::Attr(Stat { ino: 7, size: PAGE, ..Stat::default() })),
                Call::Read { .. } => Ok(Answer::Data(Bytes::from_static(&[0; PAGE as usize]))),
                Call::Write { .. } => Err(Errno::EIO.into()),
                Call::Fsync { .. } => {
                    syncs += 1;
                    Ok(Answer::Done)
                }
                other => panic!("{other:?}"),
            };
            sched.answer(request.id, answer);
        }
    }
    let lost = Err(Fail::Errno(Errno::EIO));
    assert_eq!((&results.borrow()[..], syncs), (&[lost, Ok(()), lost, Ok(()), Ok(())][..], 3));
}

fn kernel_with_signals() -> (Sched, Kernel) {
    let sched = Sched::new();
    let plan = Plan { signals: 1, ..Plan::still(0) };
    let kernel = Kernel::new(sched.clone(), 0, &plan, Rng::new(0)).with_signals();
    (sched, kernel)
}

/// A read of more pages than fit into one request: a signal before anything was read ends it, a later one does not.
#[test]
fn a_read_ends_with_a_signal_only_if_nothing_was_read() {
    const ALL: u64 = 40 * PAGE;
    let read = |interrupted: &[usize]| {
        let (sched, kernel) = kernel_with_signals();
        let fd = kernel.opened(7, FileHandle(1), 0, false, false);
        let result = Rc::new(RefCell::new(None));
        let outcome = result.clone();
        sched.spawn("a program", async move {
            let read = kernel.read(&Cred::default(), &fd, 0, ALL as u32 + 1).await;
            *outcome.borrow_mut() = Some(read.map(|data| data.len() as u64));
        });
        let mut asked = Vec::new();
        while result.borrow().is_none() {
            sched.run();
            for request in sched.take_requests() {
                let answer = match request.call {
                    Call::Getattr { .. } => Ok(Answer::Attr(Stat { ino: 7, size: ALL, ..Stat::default() })),
                    Call::Read { offset, length, .. } => {
                        asked.push(offset / PAGE);
                        match interrupted.contains(&asked.len()) {
                            true => Err(Errno::EINTR.into()),
                            false => Ok(Answer::Data(vec![1; length as usize].into())),
                        }
                    }
                    other => panic!("{other:?}"),
                };
                sched.answer(request.id, answer);
            }
        }
        (result.take(), asked)
    };
    assert_eq!(read(&[]), (Some(Ok(ALL)), vec![0, 32]));
    assert_eq!(read(&[1]), (Some(Err(Fail::Errno(Errno::EINTR))), vec![0]));
    assert_eq!(read(&[2, 3]), (Some(Ok(ALL)), vec![0, 32, 32, 32]));
}

/// A read holds a page lock, possibly for long: a write that waits for that page holds no lock of another page, so the other page
/// can be dropped.
#[test]
fn a_write_that_waits_for_a_page_holds_no_other_page_lock() {
    let sched = Sched::new();
    let kernel = Kernel::new(sched.clone(), 0, &Plan::still(0), Rng::new(0));
    let fd = kernel.opened(7, FileHandle(1), 2, false, false);
    kernel.inode(7, |inode| inode.size = 8 * PAGE);
    let cred = Cred::default();
    let (reads, reader) = (kernel.clone(), fd.clone());
    let asked = Rc::new(RefCell::new(Vec::new()));
    sched.spawn("a reader", {
        let cred = cred.clone();
        async move { reads.fill_pages(&cred, &reader, PAGE, 2 * PAGE).await.map(drop).unwrap() }
    });
    sched.run();
    let [read] = sched.take_requests().into_iter().collect::<Vec<_>>().try_into().ok().unwrap();
    assert!(matches!(read.call, Call::Read { offset: PAGE, .. }));

    let ended = Rc::new(RefCell::new(Vec::new()));
    let (writes, done) = (kernel.clone(), ended.clone());
    sched.spawn("a writer", async move {
        let data = Bytes::from(vec![1; PAGE as usize + 16]);
        let written = writes.write(&cred, &fd, PAGE - 8, &data).await;
        done.borrow_mut().push(("written", written.unwrap()));
    });
    let answer_writes = || {
        sched.run();
        for request in sched.take_requests() {
            let Call::Write { offset, data, .. } = request.call else { panic!("{:?}", request.call) };
            asked.borrow_mut().push((offset, data.len() as u64));
            sched.answer(request.id, Ok(Answer::Written(data.len() as u32)));
        }
        sched.run();
    };
    answer_writes();
    assert_eq!(*asked.borrow(), [(PAGE - 8, 8)]);
    let done = ended.clone();
    sched.spawn("a drop", async move {
        kernel.drop_pages(7, 0, PAGE).await;
        done.borrow_mut().push(("dropped", 0));
    });
    sched.run();
    assert_eq!(*ended.borrow(), [("dropped", 0)]);
    sched.answer(read.id, Ok(Answer::Data(Bytes::from_static(&[0; PAGE as usize]))));
    answer_writes();
    assert_eq!(*asked.borrow(), [(PAGE - 8, 8), (PAGE, PAGE + 8)]);
    assert_eq!(*ended.borrow(), [("dropped", 0), ("written", PAGE as u32 + 16)]);
}

/// A read holds the lock of a page that a zeroing drops: it does not show the zeros together with the old size.
#[test]
fn a_zeroing_extends_the_file_before_it_drops_pages() {
    let sched = Sched::new();
    let kernel = Kernel::new(sched.clone(), 0, &Plan::still(0), Rng::new(0));
    let fd = kernel.opened(7, FileHandle(1), 2, false, false);
    kernel.inode(7, |inode| inode.size = 200);
    let (reads, reader) = (kernel.clone(), fd.clone());
    sched.spawn("a reader", async move {
        reads.fill_pages(&Cred::default(), &reader, 0, 200).await.map(drop).unwrap();
    });
    sched.run();
    let [read] = sched.take_requests().into_iter().collect::<Vec<_>>().try_into().ok().unwrap();
    let (zeroes, ended) = (kernel.clone(), Rc::new(RefCell::new(false)));
    let end = ended.clone();
    sched.spawn("a zeroing", async move {
        zeroes.fallocate(&Cred::default(), &fd, 0x10, 100, 256).await.unwrap();
        *end.borrow_mut() = true;
    });
    sched.run();
    for request in sched.take_requests() {
        assert!(matches!(request.call, Call::Fallocate { .. }), "{:?}", request.call);
        sched.answer(request.id, Ok(Answer::Done));
    }
    sched.run();
    assert_eq!((kernel.inode(7, |inode| inode.size), *ended.borrow()), (356, false), "the page is locked");
    sched.answer(read.id, Ok(Answer::Data(Bytes::from_static(&[0; 356]))));
    sched.run();
    assert!(*ended.borrow());
}

/// A write of two requests: a signal before anything was written ends it, a later one does not. A fatal signal always does.
#[test]
fn a_write_ends_with_a_signal_only_if_nothing_was_written() {
    let write_and = |fail: Fail, interrupted: &[usize]| {
        let (sched, kernel) = kernel_with_signals();
        let fd = kernel.opened(7, FileHandle(1), 2, false, false);
        let result = Rc::new(RefCell::new(None));
        let outcome = result.clone();
        sched.spawn("a program", async move {
            let written = kernel.write(&Cred::default(), &fd, PAGE - 8, &Bytes::from_static(&[1; 16])).await;
            *outcome.borrow_mut() = Some(written);
        });
        let mut asked = Vec::new();
        while result.borrow().is_none() {
            sched.run();
            for request in sched.take_requests() {
                let Call::Write { offset, data, .. } = request.call else { panic!("{:?}", request.call) };
                asked.push(offset);
                let answer = match interrupted.contains(&asked.len()) {
                    true => Err(fail),
                    false => Ok(Answer::Written(data.len() as u32)),
                };
                sched.answer(request.id, answer);
            }
        }
        (result.take(), asked)
    };
    let write = |interrupted: &[usize]| write_and(Errno::EINTR.into(), interrupted);
    assert_eq!(write(&[]), (Some(Ok(16)), vec![PAGE - 8, PAGE]));
    assert_eq!(write(&[1]), (Some(Err(Fail::Errno(Errno::EINTR))), vec![PAGE - 8]));
    assert_eq!(write(&[2, 3]), (Some(Ok(16)), vec![PAGE - 8, PAGE, PAGE, PAGE]));
    let kill = |at: usize| write_and(Fail::Killed(PartialWrite::default()), &[at]);
    let killed = |written, asked| Some(Err(Fail::Killed(PartialWrite { written, asked })));
    assert_eq!(kill(1), (killed(0, 8), vec![PAGE - 8]));
    assert_eq!(kill(2), (killed(8, 8), vec![PAGE - 8, PAGE]));
}
