//! What replies bring goes into the caches here, when they arrive: locks first, then what they cover.
