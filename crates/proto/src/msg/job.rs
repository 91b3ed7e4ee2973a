//! Requests that carry the name of the job that they are made for.

use prost::Message;

use super::{
    Cred, Fid2pathReq, GetattrReq, GetxattrReq, LookupReq, ObjSyncReq, PunchReq, ReadReq, ReaddirReq, ReintReq,
    SeekReq, WriteReq,
};

/// Longest job name, in bytes.
pub const JOB_MAX: usize = 31;

/// A request that carries the name of a job.
pub trait OfJob: Message {
    /// Name of the job; empty if there is none.
    fn job(&self) -> &str;
}

macro_rules! in_cred {
    ($($message:ty),*) => {
        $(impl OfJob for $message {
            fn job(&self) -> &str {
                self.cred.as_ref().map_or("", |cred: &Cred| &cred.job)
            }
        })*
    };
}

macro_rules! itself {
    ($($message:ty),*) => {
        $(impl OfJob for $message {
            fn job(&self) -> &str {
                &self.job
            }
        })*
    };
}

in_cred!(Fid2pathReq, GetattrReq, GetxattrReq, LookupReq, ReaddirReq, ReintReq);
itself!(ObjSyncReq, PunchReq, ReadReq, SeekReq, WriteReq);
