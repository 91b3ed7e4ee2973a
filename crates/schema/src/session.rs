//! Client and reply records of a target (table `02`).
