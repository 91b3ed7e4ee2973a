//! ost
