//! What a change reads on other targets before it is made, and what this target shows of changes that are under way.

use bytes::Bytes;
use proto::msg::{Act, Attr, CrossLookRep, CrossLookReq, DirName, NameAct, NamedObject, SeenObject, Stripe};
use proto::{Errno, Fid};
use rules::mode::{S_IFDIR, S_IFMT};
use rules::{Object, names};
use schema::Inode;
use target::{Cx, Reply, Stop};

use super::{named, relayout};
use crate::Mdt;
use crate::tree::{self, Node};

/// How often a change looks at other targets before it is refused because what is there changes all the time.
const LOOKS_MAX: u32 = 64;

/// What the rules read of an object.
pub(super) fn seen(inode: &Inode) -> SeenObject {
    let object = Object::from(inode);
    SeenObject {
        mode: object.mode,
        uid: object.uid,
        gid: object.gid,
        access_list: object.access_list.map(Bytes::copy_from_slice),
        is_full: inode.is_dir() && inode.dir.entries > 0,
        stripes: inode.stripes().to_vec(),
        master: inode.lmv.as_ref().and_then(|lmv| lmv.master),
        version: inode.layout_version(),
        settled: false,
        times: relayout::times_of(inode),
    }
}

/// A directory or object that a change concerns.
#[derive(Debug)]
pub enum End {
    /// It is on this target.
    Here(Node),
    /// It is on another one, which has described it.
    There {
        /// Its target.
        mdt: u32,
        /// Its FID.
        fid: Fid,
        /// What it is.
        seen: SeenObject,
    },
}

impl End {
    /// Its FID.
    pub fn fid(&self) -> Fid {
        match self {
            End::Here(node) => node.fid(),
            End::There { fid, .. } => *fid,
        }
    }

    /// What the rules read of it. It exists, so it has links; how many is not known of an object on another target.
    pub fn object(&self) -> Object<'_> {
        match self {
            End::Here(node) => (&node.inode).into(),
            End::There { seen, .. } => Object {
                mode: seen.mode,
                uid: seen.uid,
                gid: seen.gid,
                nlink: 2,
                access_list: seen.access_list.as_deref(),
                ..Object::default()
            },
        }
    }

    /// The directory that programs see: of a stripe its master, otherwise itself.
    pub fn master(&self) -> Fid {
        match self {
            End::Here(node) => node.inode.master(),
            End::There { fid, seen, .. } => seen.master.unwrap_or(*fid),
        }
    }

    /// The stripes of a striped directory, itself first.
    pub fn stripes(&self) -> &[Stripe] {
        match self {
            End::Here(node) => node.inode.stripes(),
            End::There { seen, .. } => &seen.stripes,
        }
    }

    /// Whether it is a directory with entries.
    pub fn is_full(&self) -> bool {
        match self {
            End::Here(node) => node.inode.dir.entries > 0,
            End::There { seen, .. } => seen.is_full,
        }
    }

    /// The object, if it is on this target.
    pub fn here(&self) -> Option<&Node> {
        match self {
            End::Here(node) => Some(node),
            End::There { .. } => None,
        }
    }

    /// The index of its target.
    pub fn mdt(&self, cx: &Cx<'_>) -> u32 {
        match self {
            End::Here(_) => cx.name().index.0,
            End::There { mdt, .. } => *mdt,
        }
    }

    /// What its target has to find.
    pub fn seen(&self) -> Option<SeenObject> {
        match self {
            End::Here(_) => None,
            End::There { seen, .. } => Some(seen.clone()),
        }
    }
}

/// What a change has read on other targets, without holding anything there.
///
/// An error is answered only if two readings after each other are the same, and the check between them, with what is on this
/// target, has found that error. Then there was a moment at which all was as the check has seen it.
#[derive(Debug, Default)]
pub struct Looks {
    earlier: u32,
    errno: i32,
    before: Vec<Result<CrossLookRep, Errno>>,
    now: Vec<Result<CrossLookRep, Errno>>,
}

impl Looks {
    /// Reads a name, and an object.
    pub fn look(
        &mut self,
        cx: &mut Cx<'_>,
        mdt: u32,
        name: Option<DirName>,
        object: Option<Fid>,
    ) -> Result<CrossLookRep, Stop> {
        self.ask(cx, mdt, CrossLookReq { name, object, ..CrossLookReq::default() })
    }

    /// Reads the way up from a directory: the parents, as far as the target has the directories.
    pub fn way(&mut self, cx: &mut Cx<'_>, mdt: u32, dir: Fid) -> Result<Vec<Fid>, Stop> {
        let way = self.ask(cx, mdt, CrossLookReq { way: Some(dir), ..CrossLookReq::default() })?.way;
        if way.is_empty() { Err(Errno::EPROTO.into()) } else { Ok(way) }
    }

    fn ask(&mut self, cx: &mut Cx<'_>, mdt: u32, question: CrossLookReq) -> Result<CrossLookRep, Stop> {
        let question = CrossLookReq { earlier: self.earlier, errno: self.errno, ..question };
        let answer = match cx.look(mdt, &question) {
            Ok(rep) => Ok(rep),
            Err(Stop::Errno(errno)) => Err(errno),
            Err(Stop::Wait) => return Err(Stop::Wait),
        };
        self.now.push(answer.clone());
        Ok(answer?)
    }

    /// Reads an object.
    pub fn object(&mut self, cx: &mut Cx<'_>, mdt: u32, fid: Fid) -> Result<End, Stop> {
        let seen = self.look(cx, mdt, None, Some(fid))?.object.ok_or(Errno::EPROTO)?;
        Ok(End::There { mdt, fid, seen })
    }

    /// Whether this errno, 0 for none, may be answered. Otherwise everything has to be read again.
    pub fn may_answer(&mut self, errno: i32) -> bool {
        let repeated = self.earlier > 0 && self.now == self.before && self.errno == errno;
        if self.now.is_empty() || repeated || self.earlier == LOOKS_MAX || errno == Errno::EINPROGRESS.raw() {
            return true;
        }
        stdx::mark!("mdt.looks_again");
        (self.earlier, self.errno) = (self.earlier + 1, errno);
        self.before = core::mem::take(&mut self.now);
        false
    }
}

/// Shows a directory as changes of its names that are in doubt will leave it, after all others that are under way.
pub fn show(cx: &mut Cx<'_>, dir: Fid, attr: &mut Attr) -> Result<(), Stop> {
    for step in cx.shows_directory(dir)?.into_iter().flat_map(|part| part.acts) {
        let Some(Act::Name(act)) = step.act.filter(|act| matches!(act, Act::Name(act) if act.name.parent == dir))
        else {
            continue;
        };
        stdx::mark!("mdt.shown_in_doubt");
        let mut object = Object::without_list(attr);
        object.content_changed(step.now_ns);
        object.nlink = object.nlink.saturating_add_signed(more_directories(&act));
        object.show_in(attr);
    }
    Ok(())
}

/// How many directories more the directory of a name has after an act.
pub(super) fn more_directories(act: &NameAct) -> i32 {
    let is_dir = |object: Option<NamedObject>| i32::from(object.is_some_and(|of| of.mode & S_IFMT == S_IFDIR));
    is_dir(act.after) - is_dir(act.before)
}

/// Describes what is here to another target.
pub fn look(mdt: &Mdt, cx: &mut Cx<'_>, question: &CrossLookReq) -> Result<Reply, Stop> {
    let mut rep = CrossLookRep::default();
    if let Some(DirName { parent, name }) = &question.name {
        let dir = tree::dir(cx, *parent)?;
        rep.dir = Some(seen(&dir.inode));
        let entry = match names::check(name).is_ok() && !names::is_dot(name) {
            true => mdt.place(cx, &dir, name)?.entry,
            false => None,
        };
        if let Some(entry) = entry {
            rep.named = Some(named(cx, &entry));
            if entry.mdt.is_none() {
                rep.object = Some(seen(&tree::losing_name(cx, &entry)?.inode));
            }
        }
    }
    if let Some(fid) = question.way {
        rep.way = tree::way_up(cx, fid)?;
        if rep.way.is_empty() {
            return Err(Errno::ESTALE.into());
        }
        (rep.moves, rep.start) = (mdt.moved_directories, cx.instance());
    }
    if let Some(fid) = question.object {
        let node = tree::node(cx, fid)?;
        let node = tree::without_lease(cx, node)?;
        rep.object = Some(relayout::describe(cx, &node)?);
    }
    if let Some(DirName { parent, name }) = &question.former {
        let dir = tree::node(cx, *parent)?;
        rep.named = mdt.former_here(cx, &dir, name, question.leaves)?.map(|entry| named(cx, &entry));
    }
    Ok(Reply::new(&rep))
}
