//! Values at stable small indices.

/// A vector whose holes are filled again.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { items: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, item: T) -> u32 {
        if let Some(i) = self.free.pop() {
            self.items[i as usize] = Some(item);
            return i;
        }
        assert!(self.items.len() < u32::MAX as usize, "more than four thousand million locks");
        self.items.push(Some(item));
        (self.items.len() - 1) as u32
    }

    pub(crate) fn remove(&mut self, i: u32) -> T {
        let item = self.items[i as usize].take().expect("an index of the slab is live until it is removed");
        self.free.push(i);
        item
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// All items, by index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.items.iter().enumerate().filter_map(|(i, item)| Some((i as u32, item.as_ref()?)))
    }
}

impl<T> core::ops::Index<u32> for Slab<T> {
    type Output = T;
    #[inline]
    fn index(&self, i: u32) -> &T {
        self.items[i as usize].as_ref().expect("an index of the slab is live until it is removed")
    }
}

impl<T> core::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, i: u32) -> &mut T {
        self.items[i as usize].as_mut().expect("an index of the slab is live until it is removed")
    }
}
