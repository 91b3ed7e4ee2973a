//! Single stories.
