//! Random operations against a model of a namespace, as root: the same errors, the same tree, and nothing that lfsck finds;
//! also when the server dies in between.

use super::*;
use std::collections::BTreeMap;
use stdx::Rng;

/// A namespace that is easily right: directories as maps.
#[derive(Default)]
struct Model {
    dirs: BTreeMap<Fid, BTreeMap<String, Fid>>,
    links: BTreeMap<Fid, u32>,
}

impl Model {
    fn is_dir(&self, fid: Fid) -> bool {
        self.dirs.contains_key(&fid)
    }

    fn get(&self, dir: Fid, name: &str) -> Result<Option<Fid>, Errno> {
        if !self.exists(dir) {
            return Err(Errno::ESTALE);
        }
        let entries = self.dirs.get(&dir).ok_or(Errno::ENOTDIR)?;
        Ok(entries.get(name).copied())
    }

    fn exists(&self, fid: Fid) -> bool {
        self.is_dir(fid) || self.links.contains_key(&fid)
    }

    fn parent(&self, fid: Fid) -> Option<Fid> {
        self.dirs.iter().find(|(_, entries)| entries.values().any(|&child| child == fid)).map(|(&dir, _)| dir)
    }

    fn lies_in(&self, mut fid: Fid, ancestor: Fid) -> bool {
        loop {
            if fid == ancestor {
                return true;
            }
            match self.parent(fid) {
                Some(parent) => fid = parent,
                None => return false,
            }
        }
    }

    fn create(&mut self, dir: Fid, name: &str, fid: Fid, is_dir: bool) -> Result<(), Errno> {
        if self.get(dir, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        self.dirs.get_mut(&dir).expect("looked at").insert(name.into(), fid);
        match is_dir {
            true => drop(self.dirs.insert(fid, BTreeMap::new())),
            false => drop(self.links.insert(fid, 1)),
        }
        Ok(())
    }

    fn link(&mut self, fid: Fid, dir: Fid, name: &str) -> Result<(), Errno> {
        if !self.exists(fid) {
            return Err(Errno::ESTALE);
        }
        if self.get(dir, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        *self.links.get_mut(&fid).ok_or(Errno::EPERM)? += 1;
        self.dirs.get_mut(&dir).expect("looked at").insert(name.into(), fid);
        Ok(())
    }

    fn drop_link(&mut self, fid: Fid) {
        self.dirs.remove(&fid);
        if let Some(links) = self.links.get_mut(&fid) {
            *links -= 1;
            if *links == 0 {
                self.links.remove(&fid);
            }
        }
    }

    fn remove(&mut self, dir: Fid, name: &str, rmdir: bool) -> Result<(), Errno> {
        let fid = self.get(dir, name)?.ok_or(Errno::ENOENT)?;
        match (rmdir, self.dirs.get(&fid)) {
            (true, None) => return Err(Errno::ENOTDIR),
            (false, Some(_)) => return Err(Errno::EISDIR),
            (true, Some(entries)) if !entries.is_empty() => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        self.dirs.get_mut(&dir).expect("looked at").remove(name);
        self.drop_link(fid);
        Ok(())
    }

    fn rename(&mut self, from: (Fid, &str), to: (Fid, &str), flags: u32) -> Result<(), Errno> {
        if !self.exists(from.0) {
            return Err(Errno::ESTALE);
        }
        if !self.is_dir(from.0) {
            return Err(Errno::ENOTDIR);
        }
        self.get(to.0, "")?;
        let moved = self.get(from.0, from.1)?.ok_or(Errno::ENOENT)?;
        let other = self.get(to.0, to.1)?;
        match other {
            Some(_) if flags == 1 => return Err(Errno::EEXIST),
            None if flags == 2 => return Err(Errno::ENOENT),
            _ => {}
        }
        if from.0 != to.0 && self.is_dir(moved) && self.lies_in(to.0, moved) {
            return Err(Errno::EINVAL);
        }
        if let Some(other) = other {
            if from.0 != to.0 && self.is_dir(other) && self.lies_in(from.0, other) {
                return Err(if flags == 2 { Errno::EINVAL } else { Errno::ENOTEMPTY });
            }
            if other == moved {
                return Ok(());
            }
            match (self.is_dir(moved), self.dirs.get(&other)) {
                _ if flags == 2 => {}
                (true, None) => return Err(Errno::ENOTDIR),
                (false, Some(_)) => return Err(Errno::EISDIR),
                (true, Some(entries)) if !entries.is_empty() => return Err(Errno::ENOTEMPTY),
                _ => {}
            }
        }
        self.dirs.get_mut(&from.0).expect("looked at").remove(from.1);
        self.dirs.get_mut(&to.0).expect("looked at").insert(to.1.into(), moved);
        match other {
            Some(other) if flags == 2 => drop(self.dirs.get_mut(&from.0).expect("there").insert(from.1.into(), other)),
            Some(other) => self.drop_link(other),
            None => {}
        }
        Ok(())
    }
}

struct Run {
    w: World,
    model: Model,
    rng: Rng,
    fids: Vec<Fid>,
}

impl Run {
    fn fid(&mut self) -> Fid {
        // Mostly something recent, so that much happens in few places.
        let from = self.fids.len().saturating_sub(12);
        let some = if self.rng.chance(1, 4) { &self.fids[..] } else { &self.fids[from..] };
        self.rng.pick(some).copied().unwrap_or(Fid::ROOT)
    }

    fn name(&mut self) -> String {
        format!("n{}", self.rng.below(4))
    }

    fn step(&mut self) {
        let (dir, name, fid, to, to_name) = (self.fid(), self.name(), self.fid(), self.fid(), self.name());
        let (w, model) = (&mut self.w, &mut self.model);
        match self.rng.below(10) {
            0..=3 => {
                let is_dir = self.rng.chance(1, 2);
                let kind = if is_dir { S_IFDIR | 0o755 } else { S_IFREG | 0o644 };
                let made = w.create(dir, &name, kind);
                let new = made.unwrap_or(Fid::NONE);
                assert_eq!(made.map(drop), model.create(dir, &name, new, is_dir), "create {dir}/{name}");
                self.fids.extend(made.ok());
            }
            4 => {
                let done = w.link(fid, dir, &name).map(|attr| attr.nlink);
                let expected = model.link(fid, dir, &name).map(|()| model.links[&fid]);
                assert_eq!(done, expected, "link {fid} {dir}/{name}");
            }
            5 => assert_eq!(w.unlink(dir, &name).map(drop), model.remove(dir, &name, false), "unlink {dir}/{name}"),
            6 => assert_eq!(w.rmdir(dir, &name).map(drop), model.remove(dir, &name, true), "rmdir {dir}/{name}"),
            _ => {
                let flags = *self.rng.pick(&[0, 0, 1, 2]).expect("some");
                let done = w.rename((dir, &name), (to, &to_name), flags).map(drop);
                let expected = model.rename((dir, &name), (to, &to_name), flags);
                assert_eq!(done, expected, "rename {dir}/{name} {to}/{to_name} {flags}");
            }
        }
    }

    /// The whole tree, and what lfsck says.
    fn compare(&mut self) {
        for (&dir, entries) in &self.model.dirs {
            let listed = self.w.readdir(dir, false, 1 << 16);
            let mut found: Vec<(String, Fid)> =
                listed.iter().map(|entry| (String::from_utf8_lossy(&entry.name).into(), entry.fid)).collect();
            found.sort();
            let expected: Vec<(String, Fid)> = entries.iter().map(|(name, fid)| (name.clone(), *fid)).collect();
            assert_eq!(found, expected, "{dir}");
        }
        self.w.check();
    }

    /// The server dies with what was not written; the client replays it.
    fn crash(&mut self) {
        self.w.crash();
        self.w.reconnect(0);
        let mut kept = core::mem::take(&mut self.w.clients[0].kept);
        kept.sort_by_key(|frame| frame.header.transno);
        for frame in kept {
            let xid = frame.header.xid;
            let answer = self.w.send_again(0, frame, flags::REPLAY);
            assert_eq!(answer.header.status, 0, "replay of {xid}");
        }
        self.w.recovered(0);
    }
}

#[test]
fn random_operations_do_what_the_model_does() {
    for seed in 0..12 {
        let mut model = Model::default();
        model.dirs.insert(Fid::ROOT, BTreeMap::new());
        let mut run = Run { w: World::new(), model, rng: Rng::new(seed), fids: vec![Fid::ROOT] };
        for round in 0..8 {
            for _ in 0..60 {
                run.step();
                if run.rng.chance(1, 20) {
                    run.w.commits = !run.w.commits;
                    run.w.write_groups();
                }
            }
            if round % 2 == 1 {
                // Kept requests are what was answered since the last crash, durable or not: the server knows which.
                run.w.commits = true;
                run.crash();
            }
            run.w.commits = true;
            run.w.write_groups();
            run.compare();
        }
    }
}
