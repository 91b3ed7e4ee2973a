//! Mounting: the MGS, the configuration, the targets in it, the root; and following the configuration as it changes.
