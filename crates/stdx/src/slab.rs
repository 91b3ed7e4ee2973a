//! A slab: values at stable small indices.

/// Items that are allocated together.
const CHUNK: usize = 256;

/// A vector that reuses freed indices. It grows by chunks, so that nothing is moved and little memory is unused.
#[derive(Debug)]
pub struct Slab<T> {
    chunks: Vec<Vec<Option<T>>>,
    free: Vec<u32>,
    len: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { chunks: Vec::new(), free: Vec::new(), len: 0 }
    }
}

impl<T> Slab<T> {
    /// Adds an item and returns its index, which is stable.
    ///
    /// # Panics
    /// If there are four thousand million items already.
    pub fn insert(&mut self, item: T) -> u32 {
        self.len += 1;
        if let Some(i) = self.free.pop() {
            *self.slot(i) = Some(item);
            return i;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            // The first chunk starts small, since most slabs are small.
            self.chunks.push(if self.chunks.is_empty() { Vec::new() } else { Vec::with_capacity(CHUNK) });
        }
        let before = (self.chunks.len() - 1) * CHUNK;
        let mut at = 0;
        if let Some(chunk) = self.chunks.last_mut() {
            at = chunk.len();
            chunk.push(Some(item));
        }
        assert!(before + at < u32::MAX as usize, "more than four thousand million items");
        (before + at) as u32
    }

    fn slot(&mut self, i: u32) -> &mut Option<T> {
        &mut self.chunks[i as usize / CHUNK][i as usize % CHUNK]
    }

    /// Removes and returns an item.
    ///
    /// # Panics
    /// If there is no item at this index.
    pub fn remove(&mut self, i: u32) -> T {
        let item = self.slot(i).take().expect("an index of the slab is live until it is removed");
        self.len -= 1;
        if self.len == 0 {
            // No index is in use: the memory is returned.
            self.chunks = Vec::new();
            self.free = Vec::new();
        } else {
            self.free.push(i);
        }
        item
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.len
    }

    /// All items, mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.chunks.iter_mut().flatten().flatten()
    }

    /// All items, by index.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let all = self.chunks.iter().flatten().enumerate();
        all.filter_map(|(i, item)| Some((i as u32, item.as_ref()?)))
    }
}

impl<T> core::ops::Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, i: u32) -> &T {
        let item = &self.chunks[i as usize / CHUNK][i as usize % CHUNK];
        item.as_ref().expect("an index of the slab is live until it is removed")
    }
}

impl<T> core::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, i: u32) -> &mut T {
        self.slot(i).as_mut().expect("an index of the slab is live until it is removed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_stay_and_holes_are_filled() {
        let mut slab = Slab::default();
        let places: Vec<u32> = (0..1000_u32).map(|n| slab.insert(n)).collect();
        assert!(places.iter().all(|&i| slab[i] == i));
        assert_eq!((slab.remove(300), slab.remove(7)), (300, 7));
        let mut again = [slab.insert(5001), slab.insert(5002)];
        again.sort_unstable();
        assert_eq!((again, slab.len()), ([7, 300], 1000));
        assert_eq!(slab.iter().count(), 1000);
        assert_eq!(slab.iter().map(|(i, _)| i).collect::<Vec<_>>(), places);
        for i in places {
            slab.remove(i);
        }
        assert_eq!((slab.len(), slab.insert(9), slab[0]), (0, 0, 9));
    }
}
