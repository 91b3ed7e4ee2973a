//! The kernel's part of a mount: what the client asks it to forget.

use client::api::KernelNode;

/// What the machine asks of the kernel; the FUSE adapter provides it.
pub trait Kernel: Send + Sync {
    /// Forget attributes and the pages of a range. Returns when the kernel has; false if it does not know the node.
    fn forget_inode(&self, ino: u64, offset: u64, length: u64) -> bool;
    /// Forget a name. Returns when the kernel has.
    fn forget_entry(&self, parent: u64, name: &[u8]);
    /// Drop what is known of these nodes, where no program uses it. It may have been done when this returns.
    fn let_go(&self, nodes: &[KernelNode]);
}

/// A kernel that remembers nothing, for the native library.
#[derive(Debug)]
pub struct NoKernel;

impl Kernel for NoKernel {
    fn forget_inode(&self, _ino: u64, _offset: u64, _length: u64) -> bool {
        true
    }
    fn forget_entry(&self, _parent: u64, _name: &[u8]) {}
    fn let_go(&self, _nodes: &[KernelNode]) {}
}
