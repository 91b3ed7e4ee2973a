//! One management target and those who talk to it: what [`Sessions`] does, and the requests of an MGS.

use std::ops::{Deref, DerefMut};

use prost::Message;
use proto::msg::{
    Config, ConfigGetReq, NameKeys, Param, RegisterRep, RegisterReq, SeqRangeRep, SeqRangeReq, SetParamReq,
    SetPoolKind, SetPoolRep, SetPoolReq, TargetLostRep, TargetLostReq,
};
use proto::{Errno, Frame, Opcode};
use rpc::client::{Outgoing, RequestId};
use store::{Engine, MemEngine};
use target::{Event, Format};
use testkit::sessions::Sessions;

use crate::Mgt;

pub(super) struct World {
    kit: Sessions<Mgt>,
}

impl Deref for World {
    type Target = Sessions<Mgt>;
    fn deref(&self) -> &Sessions<Mgt> {
        &self.kit
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Sessions<Mgt> {
        &mut self.kit
    }
}

impl World {
    pub(super) fn new() -> World {
        let engine = MemEngine::new();
        let format = Format {
            name: "MGS".parse().unwrap(),
            uuid: 7,
            mgs: vec![],
            version: "test".into(),
            wall_ns: 1,
            params: vec![],
            name_key: None,
            replaces: false,
        };
        engine.commit(1, &target::format(&format).seal(&schema::formats())).unwrap();
        World { kit: Sessions::new("MGS", engine, 1, Mgt::new) }
    }

    /// Nothing is left but what is kept for removals.
    pub(super) fn disk_is_full(&mut self) {
        self.tell(Event::Space(store::Space {
            total: 2 << 20,
            free: 0,
            reserve: 1 << 20,
            at_once: 1 << 20,
            records: 0,
            disk: 0,
        }));
    }

    /// A target or a client: all are lightweight here.
    pub(super) fn node(&mut self) -> usize {
        self.node_named("")
    }

    pub(super) fn node_named(&mut self, description: &str) -> usize {
        self.connect(true, description)
    }

    /// The connection of a node ends, and it does not come back.
    pub(super) fn cut(&mut self, node: usize) {
        self.die(node);
    }

    // --- requests ---

    pub(super) fn send(&mut self, node: usize, opcode: Opcode, body: &impl Message) -> RequestId {
        self.kit.send(node, Outgoing::new(opcode, body))
    }

    /// The answer, whatever its status is.
    pub(super) fn answer(&mut self, node: usize, id: RequestId) -> Frame {
        self.reply(node, id).unwrap()
    }

    /// Registers; a refusal comes with its sentence.
    pub(super) fn register(&mut self, node: usize, req: &RegisterReq) -> Result<u64, (Errno, String)> {
        let id = self.send(node, Opcode::MgsRegister, req);
        let frame = self.answer(node, id);
        let rep: RegisterRep = frame.decode().unwrap();
        Errno::from_status(frame.header.status).map(|()| rep.config_version).map_err(|errno| (errno, rep.reason))
    }

    /// What the target is told of replacements.
    pub(super) fn registered(&mut self, node: usize, req: &RegisterReq) -> u32 {
        let id = self.send(node, Opcode::MgsRegister, req);
        let frame = self.answer(node, id);
        let rep: RegisterRep = frame.decode().unwrap();
        assert_eq!((frame.header.status, rep.reason.as_str()), (0, ""));
        rep.replaced
    }

    /// Registers; the keys that the target gets.
    pub(super) fn name_keys(&mut self, node: usize, req: &RegisterReq) -> Option<NameKeys> {
        let id = self.send(node, Opcode::MgsRegister, req);
        let frame = self.answer(node, id);
        let rep: RegisterRep = frame.decode().unwrap();
        assert_eq!((frame.header.status, rep.reason.as_str()), (0, ""));
        rep.name_keys
    }

    /// Registers a target that was declared lost: it is refused, with the number of its losses.
    pub(super) fn is_refused(&mut self, node: usize, req: &RegisterReq) -> u32 {
        let id = self.send(node, Opcode::MgsRegister, req);
        let frame = self.answer(node, id);
        let rep: RegisterRep = frame.decode().unwrap();
        assert_eq!(Errno::from_status(frame.header.status), Err(Errno::EPERM));
        for word in [&req.target, "lctl abort_recovery_mdt", "-o abort_recov_mdt", "lfsck"] {
            assert!(rep.reason.contains(word), "{}", rep.reason);
        }
        rep.losses
    }

    /// Declares that a target is lost.
    pub(super) fn declare_lost(&mut self, node: usize, target: &str) -> Result<(), (Errno, String)> {
        let id = self.send(node, Opcode::MgsTargetLost, &TargetLostReq { target: target.into() });
        let frame = self.answer(node, id);
        let reason = frame.decode::<TargetLostRep>().unwrap_or_default().reason;
        Errno::from_status(frame.header.status).map_err(|errno| (errno, reason))
    }

    /// How often a target of `fs` was declared lost, and whether it is lost.
    pub(super) fn losses(&mut self, node: usize, target: &str) -> (u32, bool) {
        let config = self.config(node, "fs").unwrap();
        let entry = config.targets.iter().find(|entry| entry.target == target).unwrap();
        (entry.losses, entry.is_lost)
    }

    pub(super) fn config(&mut self, node: usize, fsname: &str) -> Result<Config, Errno> {
        let frame = self.call(node, Opcode::MgsConfigGet, &ConfigGetReq { fsname: fsname.into() })?;
        Ok(frame.decode().unwrap())
    }

    pub(super) fn set_param(
        &mut self,
        node: usize,
        fsname: &str,
        path: &str,
        value: Option<&str>,
    ) -> Result<(), Errno> {
        let param = Param { path: path.into(), value: value.unwrap_or_default().into() };
        let req = SetParamReq { fsname: fsname.into(), param: Some(param), delete: value.is_none() };
        self.call(node, Opcode::MgsSetParam, &req).map(drop)
    }

    pub(super) fn set_pool(
        &mut self,
        node: usize,
        kind: SetPoolKind,
        pool: &str,
        osts: &[u32],
    ) -> Result<(), (Errno, String)> {
        let req = SetPoolReq { fsname: "fs".into(), kind: kind as i32, pool: pool.into(), osts: osts.to_vec() };
        let request = self.send(node, Opcode::MgsSetPool, &req);
        let frame = self.answer(node, request);
        let reason = frame.decode::<SetPoolRep>().unwrap_or_default().reason;
        Errno::from_status(frame.header.status).map_err(|errno| (errno, reason))
    }

    pub(super) fn sequences(&mut self, node: usize, target: &str) -> Result<SeqRangeRep, Errno> {
        let frame =
            self.call(node, Opcode::MgsSeqRange, &SeqRangeReq { target: target.into(), ..SeqRangeReq::default() })?;
        Ok(frame.decode().unwrap())
    }

    /// What a node was told since it was last asked: file system and version.
    pub(super) fn told(&mut self, node: usize) -> Vec<(String, u64)> {
        self.run();
        let notices = core::mem::take(&mut self.clients[node].notices);
        let changed = |frame: proto::Frame| {
            assert_eq!(frame.header.opcode, Opcode::MgsConfigChanged as u16);
            let notice: Config = frame.decode().unwrap();
            (notice.fsname, notice.version)
        };
        notices.into_iter().map(changed).collect()
    }
}
