//! Zeroed memory for weights and activations: huge pages for the large, cache lines for the small.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a cache line: every buffer starts on one.
pub const LINE_BYTES: usize = 64;

const HUGE_BYTES: usize = 2 << 20;

/// Pages that a large buffer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Of 2 MiB.
    Huge,
    /// The usual ones.
    Small,
}

/// Zeroed bytes. Buffers of 2 MiB or more start on a 2 MiB boundary and ask for huge pages; their
/// pages are placed by the thread that first writes them.
#[derive(Debug)]
pub struct HugeBuf {
    start: NonNull<u8>,
    len: usize,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Empty,
    Heap(Layout),
    #[cfg(unix)]
    Map {
        base: NonNull<libc::c_void>,
        bytes: usize,
    },
}

// SAFETY: the buffer owns its memory; access follows Rust's borrowing rules through `&`/`&mut`.
unsafe impl Send for HugeBuf {}
// SAFETY: as above.
unsafe impl Sync for HugeBuf {}

impl HugeBuf {
    /// `len` zero bytes.
    ///
    /// Aborts as `Vec` does when the system has no memory to give.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        Self::with_pages(len, Pages::Huge)
    }

    /// `len` zero bytes in pages of a kind, if there are many.
    ///
    /// Aborts as `Vec` does when the system has no memory to give.
    #[must_use]
    pub fn with_pages(len: usize, pages: Pages) -> Self {
        if len == 0 {
            return Self {
                start: NonNull::<Line>::dangling().cast(),
                len,
                source: Source::Empty,
            };
        }
        #[cfg(unix)]
        if len >= HUGE_BYTES {
            return Self::mapped(len, pages);
        }
        Self::on_heap(len)
    }

    fn on_heap(len: usize) -> Self {
        let layout = Layout::from_size_align(len, LINE_BYTES)
            .expect("a buffer is shorter than the address space");
        // SAFETY: `len` is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Self {
            start,
            len,
            source: Source::Heap(layout),
        }
    }

    #[cfg(unix)]
    fn mapped(len: usize, pages: Pages) -> Self {
        let bytes = len.next_multiple_of(HUGE_BYTES) + HUGE_BYTES;
        let (prot, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: an anonymous map at an address of the kernel's choice touches no other memory.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0) };
        let layout = Layout::from_size_align(len, LINE_BYTES)
            .expect("a buffer is shorter than the address space");
        if base == libc::MAP_FAILED {
            handle_alloc_error(layout);
        }
        let base = NonNull::new(base).unwrap_or_else(|| handle_alloc_error(layout));
        let skip = base.cast::<u8>().align_offset(HUGE_BYTES);
        // SAFETY: the map is `HUGE_BYTES` longer than the buffer, so the aligned start lies inside it.
        let start = unsafe { base.cast::<u8>().add(skip) };
        advise(start, len.next_multiple_of(HUGE_BYTES), pages);
        Self {
            start,
            len,
            source: Source::Map { base, bytes },
        }
    }

    /// Address of the first byte, aligned to [`LINE_BYTES`].
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Mutable address of the first byte.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `start` is valid for `len` initialised bytes for as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[repr(align(64))]
struct Line;

#[cfg(target_os = "linux")]
fn advise(start: NonNull<u8>, bytes: usize, pages: Pages) {
    let advice = match pages {
        Pages::Huge => libc::MADV_HUGEPAGE,
        Pages::Small => libc::MADV_NOHUGEPAGE,
    };
    // SAFETY: the range lies inside a map this process owns; advice changes no content. A refusal
    // only means pages of another kind.
    unsafe { libc::madvise(start.as_ptr().cast(), bytes, advice) };
}

#[cfg(all(unix, not(target_os = "linux")))]
fn advise(_: NonNull<u8>, _: usize, _: Pages) {}

impl Drop for HugeBuf {
    fn drop(&mut self) {
        match self.source {
            Source::Empty => {}
            // SAFETY: allocated in `on_heap` with this layout.
            Source::Heap(layout) => unsafe { dealloc(self.start.as_ptr(), layout) },
            #[cfg(unix)]
            // SAFETY: mapped in `mapped` with this base and length.
            Source::Map { base, bytes } => unsafe {
                libc::munmap(base.as_ptr(), bytes);
            },
        }
    }
}

/// Bytes that a [`Slab`] maps at once.
const SLAB_BYTES: usize = 64 << 20;

/// Gives out many pieces of memory that share huge pages, which single pieces would not fill.
#[derive(Debug, Default)]
pub struct Slab {
    /// The current map and how much of it is given out.
    current: Mutex<Option<(Arc<HugeBuf>, usize)>>,
}

/// Zeroed bytes out of a [`Slab`], starting on a cache line.
#[derive(Debug)]
pub struct Piece {
    start: NonNull<u8>,
    len: usize,
    /// Keeps the map alive.
    _map: Arc<HugeBuf>,
}

// SAFETY: pieces of a map do not overlap, and access follows Rust's borrowing rules.
unsafe impl Send for Piece {}
// SAFETY: as above.
unsafe impl Sync for Piece {}

impl Slab {
    /// `len` zero bytes.
    #[must_use]
    pub fn take(&self, len: usize) -> Piece {
        if len > SLAB_BYTES / 4 {
            return Piece::of(Arc::new(HugeBuf::zeroed(len)), 0, len);
        }
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let (map, used) = match current.take() {
            Some((map, used)) if used + len <= map.len() => (map, used),
            _ => (Arc::new(HugeBuf::zeroed(SLAB_BYTES)), 0),
        };
        *current = Some((Arc::clone(&map), (used + len).next_multiple_of(LINE_BYTES)));
        Piece::of(map, used, len)
    }
}

impl Piece {
    fn of(map: Arc<HugeBuf>, at: usize, len: usize) -> Self {
        // SAFETY: the callers keep `at + len` inside the map.
        let start = unsafe { map.start.add(at) };
        Self {
            start,
            len,
            _map: map,
        }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the piece has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Mutable address of the first byte.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the map lives as long as `self`, and nobody else writes this piece.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

/// A growable run of zeroed plain numbers that starts on a cache line.
#[derive(Debug)]
pub struct Aligned<T> {
    buf: HugeBuf,
    len: usize,
    element: std::marker::PhantomData<T>,
}

/// Numbers for which all bit patterns are valid and zero bytes mean zero.
pub trait Plain: Copy {}
impl Plain for f32 {}
impl Plain for i32 {}
impl Plain for i8 {}
impl Plain for u8 {}
impl Plain for u16 {}
impl Plain for i16 {}

impl<T: Plain> Default for Aligned<T> {
    fn default() -> Self {
        Self::zeroed(0)
    }
}

impl<T: Plain> Aligned<T> {
    /// `len` zeros.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let buf = HugeBuf::zeroed(len * size_of::<T>());
        Self {
            buf,
            len,
            element: std::marker::PhantomData,
        }
    }

    /// Address of the first number. It stays good while others read: it comes from no slice that they would end.
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.buf.as_mut_ptr().cast()
    }

    /// Sets the length. Growing past the largest length so far replaces the memory by zeros;
    /// otherwise the contents stay as they are.
    pub fn resize(&mut self, len: usize) {
        if len * size_of::<T>() > self.buf.len() {
            *self = Self::zeroed(len);
        }
        self.len = len;
    }
}

impl<T: Plain> std::ops::Deref for Aligned<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: the buffer holds at least `len` elements, aligned to a line, valid as any bytes.
        unsafe { std::slice::from_raw_parts(self.buf.as_ptr().cast(), self.len) }
    }
}

impl<T: Plain> std::ops::DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.buf.as_mut_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_buffers_are_zeroed_aligned_and_writable() {
        for (len, align) in [
            (1, 64),
            (4096, 64),
            (HUGE_BYTES, HUGE_BYTES),
            (3 * HUGE_BYTES + 5, HUGE_BYTES),
        ] {
            let mut buf = HugeBuf::zeroed(len);
            assert_eq!(buf.as_ptr() as usize % align, 0);
            assert!(buf.bytes().iter().all(|&b| b == 0));
            buf.bytes_mut()[len - 1] = 7;
            assert_eq!((buf.len(), buf.bytes()[len - 1]), (len, 7));
        }
    }

    #[test]
    fn pieces_of_a_slab_do_not_overlap_and_outlive_it() {
        let slab = Slab::default();
        let mut pieces: Vec<Piece> = [100, 0, 1, 5 << 20, 40 << 20, 30 << 20, 15 << 20, 64]
            .into_iter()
            .map(|len| slab.take(len))
            .collect();
        drop(slab);
        for (i, piece) in pieces.iter_mut().enumerate() {
            assert_eq!(piece.as_mut_ptr() as usize % LINE_BYTES, 0);
            assert!(piece.bytes().iter().all(|&b| b == 0), "piece {i}");
            let len = piece.len();
            // SAFETY: the piece is exclusively borrowed.
            unsafe { std::slice::from_raw_parts_mut(piece.as_mut_ptr(), len) }.fill(i as u8);
        }
        assert!(
            pieces
                .iter()
                .enumerate()
                .all(|(i, p)| p.bytes().iter().all(|&b| b == i as u8))
        );
    }

    #[test]
    fn an_empty_buffer_needs_no_memory() {
        let buf = HugeBuf::zeroed(0);
        assert!(buf.is_empty() && buf.bytes().is_empty());
    }

    #[test]
    fn aligned_numbers_grow_with_zeros_and_shrink_in_place() {
        let mut numbers = Aligned::<f32>::zeroed(3);
        numbers[2] = 4.0;
        numbers.resize(2);
        assert_eq!(&*numbers, &[0.0, 0.0]);
        numbers.resize(100);
        assert!(numbers.iter().all(|&x| x == 0.0));
        assert_eq!(numbers.as_ptr() as usize % LINE_BYTES, 0);
    }
}
