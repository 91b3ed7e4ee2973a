//! One client that does not keep to the rules: what it can do to the target and to the others.

use super::data::write;
use super::rights::chmod;
use super::*;
use crate::ops::open::flags as o;

impl World {
    /// The last change of a client, as it keeps it for replay: with another transno and body.
    fn forge(&mut self, at: usize, transno: Transno, change: impl FnOnce(&mut Frame)) {
        let kept = self.clients[at].kept.last_mut().expect("a change");
        kept.header.transno = transno;
        change(kept);
    }

    /// Sends replays without waiting for what becomes of them.
    fn throw_all(&mut self, at: usize) -> Vec<u64> {
        let kept = self.clients[at].kept.clone();
        kept.into_iter().map(|frame| self.throw_again(at, frame, flags::REPLAY)).collect()
    }

    fn says_done(&mut self, at: usize, flag: u32) {
        self.send(at, Opcode::Ping, Tag(0), &Empty {}, Bytes::new(), flag);
        self.pump();
    }

    /// All of these clients end their recovery.
    fn end_recovery(&mut self, clients: &[usize]) {
        for flag in [flags::REQ_REPLAY_DONE, flags::LOCK_REPLAY_DONE] {
            for at in clients {
                self.says_done(*at, flag);
            }
        }
        self.settle();
    }

    fn statuses(&mut self, at: usize, xids: &[u64]) -> Vec<Option<i32>> {
        xids.iter().map(|xid| self.wait(at, *xid).map(|frame| frame.header.status)).collect()
    }
}

/// Honest client 0, hostile client 1; both have changed something that a crash then undoes.
fn two_clients_and_a_crash() -> World {
    let mut w = World::new();
    let hostile = w.connect();
    w.sync();
    w.commits = false;
    for n in 0..50 {
        w.mknod(Fid::ROOT, &format!("file{n}"));
    }
    w.create_as(hostile, cred(0), Fid::ROOT, "hostile", S_IFREG | 0o644).unwrap();
    w.commits = true;
    w.crash();
    w.reconnect(0);
    w.reconnect(hostile);
    w
}

/// A transno that the target never gave would be above those of all later changes: none of them would be found missing after
/// the next crash.
#[test]
fn a_transno_that_was_never_given_spoils_no_later_change() {
    for transno in [u64::MAX, u64::MAX - 1, 1 << 40] {
        let mut w = two_clients_and_a_crash();
        w.forge(1, Transno(transno), |_| {});
        let forged = w.throw_all(1);
        let honest = w.throw_all(0);
        assert_eq!(w.statuses(1, &forged), [Some(-Errno::EOVERFLOW.raw())]);
        w.end_recovery(&[1, 0]);
        assert_eq!(w.statuses(0, &honest), [Some(0); 50]);
        assert!(w.log.iter().any(|line| line.contains("client 1") && line.contains("has never given")), "{:?}", w.log);
        assert!(w.log.iter().any(|line| line.starts_with("evicts client 1")), "it is told: {:?}", w.log);
        assert_eq!(w.names(Fid::ROOT).len(), 50);

        // What is done from now on survives the next crash, by replay.
        w.log.clear();
        w.clients[0].kept.clear();
        w.sync();
        w.commits = false;
        for n in 0..50 {
            w.mknod(Fid::ROOT, &format!("later{n}"));
        }
        w.commits = true;
        w.crash();
        w.reconnect(0);
        let honest = w.throw_all(0);
        w.end_recovery(&[0]);
        assert_eq!(w.statuses(0, &honest), [Some(0); 50]);
        assert_eq!(w.names(Fid::ROOT).len(), 100);
        w.check();
    }
}

/// The hostile client claims the transnos of others for changes of its own, and is the first to say so.
#[test]
fn a_claim_to_the_transnos_of_others_loses_none_of_their_changes() {
    let mut w = two_clients_and_a_crash();
    let first = w.clients[0].kept[0].header.transno;
    let own = w.clients[1].kept.pop().unwrap();
    let mut before = Transno(0);
    for n in 0..60 {
        let mut claim = own.clone();
        let mut request: ReintReq = own.decode().unwrap();
        let Some(Reint::Create(op)) = &mut request.op else { panic!("not a create") };
        (op.name, op.fid) = (bytes(&format!("claim{n}")), w.new_fid(1));
        claim.body = request.encode_to_vec().into();
        claim.header.transno = Transno(first.0 + n);
        claim.header.xid = Xid(own.header.xid.0 + n);
        claim.header.last_committed = core::mem::replace(&mut before, claim.header.transno);
        w.clients[1].kept.push(claim);
    }
    let claims = w.throw_all(1);
    w.says_done(1, flags::REQ_REPLAY_DONE);
    let honest = w.throw_all(0);
    w.end_recovery(&[0, 1]);
    assert_eq!(w.statuses(0, &honest), [Some(0); 50], "{:?}", w.log);
    assert_eq!(w.statuses(1, &claims), [Some(0); 60], "it may make files, now as before");
    assert_eq!(w.names(Fid::ROOT).len(), 110);
    w.check();
}

/// What a replay asks for is checked as it was the first time.
#[test]
fn a_replayed_write_cannot_ask_for_more_than_a_first_one() {
    for (offset, length) in [(2 << 20, 10), (1 << 46, 10), (u64::MAX / 2 + 1, 10), (u64::MAX, 10), (0, 5 << 20)] {
        let mut w = World::new();
        let file = w.mknod(Fid::ROOT, "file");
        w.sync();
        w.commits = false;
        write(&mut w, 0, file, 0, b"data", 0).unwrap();
        let transno = w.clients[0].kept.last().unwrap().header.transno;
        w.forge(0, transno, |frame| {
            let mut request: WriteReq = frame.decode().unwrap();
            request.offset = offset;
            frame.body = request.encode_to_vec().into();
            frame.bulk = vec![1; length].into();
        });
        w.clients[0].kept.drain(..1);
        w.commits = true;
        w.crash();
        w.reconnect(0);
        let replays = w.throw_all(0);
        let status = w.statuses(0, &replays)[0].expect("an answer");
        assert!(status < 0, "{offset} {length}: {status}");
    }
}

/// A replay opens nothing that its client could not open otherwise.
#[test]
fn a_replayed_open_asks_for_permission() {
    for durable in [true, false] {
        let mut w = World::new();
        let thief = w.connect();
        let secret = w.create(Fid::ROOT, "secret", S_IFREG | 0o600).unwrap();
        let mine = w.create_as(thief, cred(1500), Fid::ROOT, "mine", S_IFREG | 0o200);
        assert!(mine.is_err(), "the root is not everybody's");
        let own = w.create_as(thief, cred(0), Fid::ROOT, "own", S_IFREG | 0o200).unwrap();
        w.sync();
        w.commits = durable;
        let open = |fid, uid| {
            let op =
                OpenOp { fid, flags: 2, opened_fid: Some(fid), old_handle: 77 + u64::from(uid), ..OpenOp::default() };
            ReintReq { cred: Some(cred(uid)), now_ns: 1, want: None, op: Some(Reint::Open(op)) }.encode_to_vec()
        };
        w.open(thief, Fid::ROOT, "own", 2).unwrap();
        let real = w.clients[thief].kept.last().unwrap().clone();
        if durable {
            w.sync();
        }
        w.commits = true;
        w.crash();
        w.reconnect(0);
        w.reconnect(thief);
        w.clients[thief].kept.clear();
        for (n, body) in [(0, open(own, 1500)), (1, open(secret, 1500))] {
            let mut forged = real.clone();
            forged.header.xid = Xid(real.header.xid.0 + n);
            forged.header.transno = Transno(real.header.transno.0 + if durable { 0 } else { n });
            forged.body = body.into();
            w.clients[thief].kept.push(forged);
        }
        let replays = w.throw_all(thief);
        w.end_recovery(&[0, thief]);
        let statuses = w.statuses(thief, &replays);
        assert_eq!(statuses, [Some(0), Some(-Errno::EACCES.raw())], "durable: {durable}");
    }
}

/// Whoever was answered knows the handle, and has the file open again though others have changed its mode meanwhile; whoever
/// claims that it was has not.
#[test]
fn a_replayed_open_of_what_was_changed_since_needs_the_handle() {
    for (forged, durable) in [(false, true), (false, false), (true, true), (true, false)] {
        let mut w = World::new();
        let other = w.connect();
        let file = w.create(Fid::ROOT, "file", S_IFREG | 0o644).unwrap();
        let ask = |w: &mut World| {
            let op = OpenOp { fid: file, flags: 0, ..OpenOp::default() };
            w.reint_as(other, cred(1500), WantLocks::default(), Reint::Open(op))
        };
        w.clients[other].kept.clear();
        w.sync();
        w.commits = false;
        let handle = ask(&mut w).unwrap().handle;
        if durable {
            w.commits = true;
            w.sync();
        }
        w.clients[0].kept.clear();
        chmod(&mut w, file, 0o600);
        assert_eq!(ask(&mut w).err(), Some(Errno::EACCES));
        w.commits = true;
        w.sync();
        // Twice: what was opened again can be opened again, too.
        for _ in 0..2 {
            w.crash();
            w.reconnect(0);
            w.reconnect(other);
            w.clients[other].kept.truncate(1);
            let transno = w.clients[other].kept[0].header.transno;
            w.forge(other, transno, |frame| {
                let mut request: ReintReq = frame.decode().unwrap();
                let Some(Reint::Open(op)) = &mut request.op else { panic!("not an open") };
                (op.opened_fid, op.old_handle) = (Some(file), handle ^ u64::from(forged));
                frame.body = request.encode_to_vec().into();
            });
            w.clients[0].kept.clear();
            let replays = w.throw_all(other);
            w.end_recovery(&[0, other]);
            let expected = if forged { -Errno::EACCES.raw() } else { 0 };
            assert_eq!(w.statuses(other, &replays), [Some(expected)], "forged: {forged}, durable: {durable}");
            if forged {
                break;
            }
            assert_eq!(w.close(other, file, handle).map(|_| ()), Ok(()), "by the handle that it has always had");
            w.sync();
            w.clients[other].kept.truncate(1);
        }
    }
}

#[test]
fn a_session_that_may_only_read_changes_nothing() {
    let mut w = World::new();
    let file = w.mknod(Fid::ROOT, "file");
    let reader = w.connect();
    w.clients[reader].read_only = true;
    w.reconnect(reader);
    let opened = w.open(reader, Fid::ROOT, "file", 0).unwrap();
    w.close(reader, file, opened.handle).unwrap();
    for flags in [1, 2, o::CREAT, o::TRUNC] {
        assert_eq!(w.open(reader, Fid::ROOT, "file", flags).err(), Some(Errno::EROFS), "{flags:o}");
    }
    assert_eq!(w.create_as(reader, cred(0), Fid::ROOT, "new", S_IFREG | 0o644), Err(Errno::EROFS));
    assert_eq!(w.remove_as(reader, cred(0), Fid::ROOT, "file", false), Err(Errno::EROFS));
    assert_eq!(write(&mut w, reader, file, 0, b"x", 0), Err(Errno::EROFS));
    let batch = BatchReq::default();
    assert_eq!(w.ask(reader, Opcode::MdsBatch, Tag(1), &batch, Bytes::new()), Err(Errno::EROFS));
    w.check();
}

/// A lock that comes before its object would keep others from making it.
#[test]
fn nobody_locks_what_is_not_there() {
    let mut w = World::new();
    let hostile = w.connect();
    let lock = |w: &mut World, at: usize, resource: Resource, policy: Policy, mode: LockMode| {
        let (mode, cookie) = (mode as i32, w.new_cookie(at));
        let request = EnqueueReq { resource, mode, cookie, policy: Some(policy), ..EnqueueReq::default() };
        w.call::<EnqueueRep>(at, Opcode::LdlmEnqueue, &request).map(|reply| reply.grant.is_some())
    };
    let next = w.new_fid(0);
    let bits = Policy::Bits(u64::from(u32::MAX));
    assert_eq!(lock(&mut w, hostile, Resource::inode(next), bits, LockMode::Ex), Err(Errno::ESTALE));
    let record = Policy::Flock(Flock { owner: 1, end: u64::MAX, ..Flock::default() });
    let file = Resource { kind: ResourceKind::Flock as i32, ..Resource::inode(next) };
    assert_eq!(lock(&mut w, hostile, file, record, LockMode::Pw), Err(Errno::ESTALE));
    assert_eq!(lock(&mut w, hostile, file, record, LockMode::Nl), Ok(false), "there is nothing to give back");
    let own = w.new_fid(hostile);
    assert_eq!(lock(&mut w, hostile, Resource::inode(own), bits, LockMode::Ex), Ok(true), "its own are its affair");
    let made = w.mknod(Fid::ROOT, "file");
    assert_eq!(lock(&mut w, hostile, Resource { fid: made, ..file }, record, LockMode::Pw), Ok(true));
    w.check();
}

#[test]
fn a_listing_without_a_credential_is_nobodys() {
    let mut w = World::new();
    let dir = w.create(Fid::ROOT, "dir", S_IFDIR | 0o700).unwrap();
    let mut list = |cred| {
        let request = ReaddirReq { fid: dir, max_bytes: 1 << 16, cred, ..ReaddirReq::default() };
        w.call::<ReaddirRep>(0, Opcode::MdsReaddir, &request).map(|rep| rep.end)
    };
    assert_eq!(list(None), Err(Errno::EACCES));
    assert_eq!(list(Some(cred(0))), Ok(true));
}
