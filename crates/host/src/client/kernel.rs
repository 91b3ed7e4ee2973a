//! The interface to the kernel's caches: what the client asks the kernel to invalidate.

use client::api::KernelNode;

/// Requests of the machine to the kernel. The FUSE adapter implements them.
pub trait Kernel: Send + Sync {
    /// Invalidates attributes and a range of pages. Returns when that is done; false if the kernel does not know the node.
    fn forget_inode(&self, ino: u64, offset: u64, length: u64) -> bool;
    /// Invalidates a name. Returns when that is done.
    fn forget_entry(&self, parent: u64, name: &[u8]);
    /// Asks the kernel to drop these nodes where no program uses them. The kernel need not have done so when this returns.
    fn let_go(&self, nodes: &[KernelNode]);
}

/// A kernel that caches nothing, for the native library.
#[derive(Debug)]
pub struct NoKernel;

impl Kernel for NoKernel {
    fn forget_inode(&self, _ino: u64, _offset: u64, _length: u64) -> bool {
        true
    }
    fn forget_entry(&self, _parent: u64, _name: &[u8]) {}
    fn let_go(&self, _nodes: &[KernelNode]) {}
}
