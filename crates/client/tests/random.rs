//! A random history of several clients, one call after another, against a model; with restarts, cut connections and late
//! news for the kernels.

use std::collections::BTreeMap;
use std::time::Duration;

use proto::Errno;
use stdx::Rng;
use testkit::cluster::kernel::{Kernel, Vfs, split};
use testkit::cluster::{Cluster, seeds};

#[derive(Clone, Debug)]
enum Object {
    Dir(BTreeMap<String, usize>),
    File(Vec<u8>),
}

/// What a local file system would do.
struct Model {
    objects: Vec<Object>,
    modes: Vec<u32>,
}

impl Model {
    fn new() -> Model {
        Model { objects: vec![Object::Dir(BTreeMap::new())], modes: vec![0o755] }
    }

    fn find(&self, path: &str) -> Result<usize, Errno> {
        let mut at = 0;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            match &self.objects[at] {
                Object::Dir(names) => at = *names.get(part).ok_or(Errno::ENOENT)?,
                Object::File(_) => return Err(Errno::ENOTDIR),
            }
        }
        Ok(at)
    }

    fn names(&mut self, at: usize) -> Result<&mut BTreeMap<String, usize>, Errno> {
        match &mut self.objects[at] {
            Object::Dir(names) => Ok(names),
            Object::File(_) => Err(Errno::ENOTDIR),
        }
    }

    fn parent(&self, path: &str) -> Result<usize, Errno> {
        let at = self.find(split(path).0)?;
        match &self.objects[at] {
            Object::Dir(_) => Ok(at),
            Object::File(_) => Err(Errno::ENOTDIR),
        }
    }

    fn make(&mut self, path: &str, object: Object, mode: u32) -> Result<(), Errno> {
        let parent = self.parent(path)?;
        if self.find(path).is_ok() {
            return Err(Errno::EEXIST);
        }
        self.objects.push(object);
        self.modes.push(mode);
        let new = self.objects.len() - 1;
        self.names(parent)?.insert(split(path).1.to_owned(), new);
        Ok(())
    }

    fn file(&mut self, path: &str) -> Result<&mut Vec<u8>, Errno> {
        self.parent(path)?;
        let at = self.find(path)?;
        match &mut self.objects[at] {
            Object::Dir(_) => Err(Errno::EISDIR),
            Object::File(data) => Ok(data),
        }
    }

    fn links(&self, of: usize) -> u32 {
        let mut count = 0;
        for object in &self.objects {
            if let Object::Dir(names) = object {
                count += names.values().filter(|at| **at == of).count();
            }
        }
        count as u32
    }

    fn remove(&mut self, path: &str, dir: bool) -> Result<(), Errno> {
        let parent = self.parent(path)?;
        let at = self.find(path)?;
        match (&self.objects[at], dir) {
            (Object::Dir(_), false) => return Err(Errno::EISDIR),
            (Object::File(_), true) => return Err(Errno::ENOTDIR),
            (Object::Dir(names), true) if !names.is_empty() => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        self.names(parent)?.remove(split(path).1);
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), Errno> {
        let (source, target) = (self.parent(from)?, self.parent(to)?);
        let at = self.find(from)?;
        let old = self.find(to).ok();
        if to.starts_with(&format!("{from}/")) {
            return Err(Errno::EINVAL);
        }
        if old == Some(at) {
            return Ok(());
        }
        if from.starts_with(&format!("{to}/")) {
            return Err(Errno::ENOTEMPTY);
        }
        if let Some(old) = old {
            match (&self.objects[at], &self.objects[old]) {
                (Object::Dir(_), Object::File(_)) => return Err(Errno::ENOTDIR),
                (Object::File(_), Object::Dir(_)) => return Err(Errno::EISDIR),
                (Object::Dir(_), Object::Dir(names)) if !names.is_empty() => return Err(Errno::ENOTEMPTY),
                _ => {}
            }
        }
        self.names(source)?.remove(split(from).1);
        self.names(target)?.insert(split(to).1.to_owned(), at);
        Ok(())
    }
}

fn path(rng: &mut Rng) -> String {
    let parts = ["a", "b", "c", "d"];
    let depth = rng.range(1, 3);
    (0..depth).map(|_| *rng.pick(&parts).unwrap()).collect::<Vec<_>>().join("/")
}

fn history(seed: u64, steps: usize, faults: bool) {
    let mut rng = Rng::new(seed);
    let clients = rng.range(1, 3) as usize;
    let mut c = Cluster::new(rng.range(1, 3) as usize);
    let mut kernels: Vec<Kernel> = (0..clients).map(|_| Kernel::default()).collect();
    for _ in 0..clients {
        let node = c.mount();
        c.nodes[node].slow_names = rng.chance(1, 2);
    }
    let mut model = Model::new();
    for step in 0..steps {
        let node = rng.below(clients as u64) as usize;
        let told = core::mem::take(&mut c.nodes[node].invalidations);
        let names = rng.below(4) as usize;
        let slow = c.nodes[node].slow_names;
        if slow {
            // Names are believed again soon after an `ESTALE`.
            c.pass(Duration::from_millis(150));
        }
        kernels[node].listen(told, slow, names);
        let (p, q) = (path(&mut rng), path(&mut rng));
        let mut what = format!("seed {seed} step {step} client {node}:");
        if faults && rng.chance(1, 40) {
            match rng.below(5) {
                0 => c.restart("fs-MDT0000"),
                1 => c.restart("fs-OST0000"),
                2 => c.cut(node),
                3 => c.slow_media = !c.slow_media,
                _ => c.pass(Duration::from_secs(1)),
            }
            // Without media nothing that waits for them ends.
            if rng.chance(1, 2) {
                c.slow_media = false;
            }
        }
        let slow = core::mem::replace(&mut c.slow_media, false);
        let mut v = Vfs { c: &mut c, node, kernel: &mut kernels[node] };
        let kind = rng.below(14);
        if slow && kind < 4 {
            v.c.slow_media = true;
        }
        let (got, want) = match kind {
            0 | 1 => {
                what += &format!("mkdir {p}");
                (v.mkdir(&p), model.make(&p, Object::Dir(BTreeMap::new()), 0o755))
            }
            2 => {
                what += &format!("create {p}");
                (v.create(&p, true), model.make(&p, Object::File(Vec::new()), 0o644))
            }
            3 => {
                what += &format!("unlink {p}");
                (v.remove(&p, false), model.remove(&p, false))
            }
            4 => {
                what += &format!("rmdir {p}");
                (v.remove(&p, true), model.remove(&p, true))
            }
            5 => {
                what += &format!("rename {p} {q}");
                (v.rename(&p, &q), model.rename(&p, &q))
            }
            6 => {
                what += &format!("link {p} {q}");
                let want = (|| {
                    let at = model.find(&p)?;
                    let parent = model.parent(&q)?;
                    if model.find(&q).is_ok() {
                        return Err(Errno::EEXIST);
                    }
                    if let Object::Dir(_) = model.objects[at] {
                        return Err(Errno::EPERM);
                    }
                    model.names(parent)?.insert(split(&q).1.to_owned(), at);
                    Ok(())
                })();
                (v.link(&p, &q), want)
            }
            7 | 8 => {
                let (offset, length) = if rng.chance(1, 6) {
                    (rng.below(200_000), rng.below(100_000))
                } else {
                    (rng.below(300), rng.below(300))
                };
                let byte = rng.range(1, 255) as u8;
                let append = rng.chance(1, 3);
                let sync = rng.chance(1, 5);
                what += &format!("write {p} at {offset} {length} bytes, append {append}");
                let data = vec![byte; length as usize + 1];
                let want = model.file(&p).map(|old| {
                    let at = if append { old.len() } else { offset as usize };
                    old.resize(old.len().max(at + data.len()), 0);
                    old[at..at + data.len()].copy_from_slice(&data);
                });
                (v.write(&p, offset, &data, append, sync), want)
            }
            9 => {
                let size = if rng.chance(1, 5) { rng.below(150_000) } else { rng.below(400) };
                what += &format!("truncate {p} to {size}");
                (
                    v.truncate(&p, size),
                    model.find(&p).and_then(|_| model.file(&p)).map(|old| old.resize(size as usize, 0)),
                )
            }
            10 => {
                let mode = if rng.chance(1, 2) { 0o700 } else { 0o755 };
                what += &format!("chmod {p} {mode:o}");
                (v.chmod(&p, mode), model.find(&p).map(|at| model.modes[at] = mode))
            }
            11 => {
                what += &format!("read {p}");
                let got = v.read(&p);
                let want = model.file(&p).cloned();
                if let (Ok(got), Ok(want)) = (&got, &want) {
                    assert_eq!(got.len(), want.len(), "{what}");
                    let differs = got.iter().zip(want).position(|(a, b)| a != b);
                    assert_eq!(differs, None, "{what}");
                }
                (got.map(drop), want.map(drop))
            }
            12 => {
                let plus = rng.chance(1, 2);
                what += &format!("list {p} plus {plus}");
                let got = v.list(&p, plus);
                let want = model
                    .find(&p)
                    .and_then(|at| model.names(at).map(|names| names.keys().cloned().collect::<Vec<_>>()));
                assert_eq!(got, want, "{what}");
                (got.map(drop), want.map(drop))
            }
            _ => {
                what += &format!("stat {p}");
                let got = v.stat(&p);
                let want = model.find(&p);
                if let (Ok(stat), Ok(at)) = (&got, &want) {
                    assert_eq!(stat.mode & 0o7777, model.modes[*at], "{what}");
                    match &model.objects[*at] {
                        Object::File(data) => {
                            assert_eq!((stat.size, stat.nlink), (data.len() as u64, model.links(*at)), "{what}")
                        }
                        Object::Dir(names) => {
                            let dirs =
                                names.values().filter(|at| matches!(model.objects[**at], Object::Dir(_))).count();
                            assert_eq!(stat.nlink as usize, 2 + dirs, "{what}");
                        }
                    }
                }
                (got.map(drop), want.map(drop))
            }
        };
        if option_env!("SEED").is_some() {
            println!("{what} -> {got:?}");
        }
        assert_eq!(got, want, "{what}\n{:#?}", c.log);
    }
    let hits: u64 = kernels.iter().map(|kernel| kernel.hits).sum();
    assert!(hits > 0);
}

#[test]
fn clients_agree_with_the_model() {
    for seed in seeds(0, 150) {
        history(seed, 300, false);
    }
    assert!(stdx::marks::count("stale_node") > 0);
    assert!(stdx::marks::count("names_left_in_doubt") > 0);
    assert!(stdx::marks::count("lookup_that_opens") > 0);
}

#[test]
fn clients_agree_with_the_model_through_restarts_and_cuts() {
    for seed in seeds(1_000_000, 150) {
        history(seed, 300, true);
    }
}
