//! What may be believed of the caches, and what they owe: locks and their callbacks, changes and closes that wait to be sent, what the
//! kernel was told. Operations run over it; what they share is here ([`world`]), and so is what an attempt of one sees ([`cx`]).

pub(crate) mod callback;
pub(crate) mod closes;
pub(crate) mod cx;
pub(crate) mod data;
pub(crate) mod events;
pub(crate) mod fids;
pub(crate) mod kernel;
pub(crate) mod local_opens;
pub(crate) mod locks;
pub(crate) mod lost;
pub(crate) mod metadata_write_back;
pub(crate) mod names;
pub(crate) mod op;
pub(crate) mod outbox;
pub(crate) mod reclaim;
pub(crate) mod replies;
pub(crate) mod request;
pub(crate) mod world;
