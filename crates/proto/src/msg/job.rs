//! Requests that name the job that they are made for.

use prost::Message;

use super::{
    Cred, Fid2pathReq, GetattrReq, GetxattrReq, LookupReq, ObjSyncReq, PunchReq, ReadReq, ReaddirReq, ReintReq,
    SeekReq, WriteReq,
};

/// Bytes of a job's name.
pub const JOB_MAX: usize = 31;

/// See the module.
pub trait OfJob: Message {
    /// Its name; empty if there is none.
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
