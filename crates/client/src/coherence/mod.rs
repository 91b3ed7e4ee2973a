//! Coherence: what of the caches is valid, and what is owed to others: locks and their callbacks, changes and closes
//! that wait to be sent, invalidations of the kernel's caches. Operations run on top of this layer. [`world`] holds the
//! state that they share, [`cx`] is what one attempt of an operation sees.

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
