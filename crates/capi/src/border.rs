//! Where pointers of a caller are looked at, and panics end.

use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::status::{self, BUFFER, Error, INTERNAL, OK, Outcome};

/// Does what a function does; a panic and an error become a status.
pub fn guard(act: impl FnOnce() -> Outcome) -> i32 {
    let done = catch_unwind(AssertUnwindSafe(act));
    let error = match done {
        Ok(Ok(status)) => return status,
        Ok(Err(error)) => error,
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            let text = text.unwrap_or_default();
            Error::new(INTERNAL, format!("an internal error: {text}"))
        }
    };
    let code = error.code;
    status::keep(error);
    code
}

/// What a caller points to.
///
/// # Safety
/// `data` is null or points to `len` values that nobody changes while this lives.
///
/// # Errors
/// A null pointer with a length, one that is not aligned, or a length that cannot be.
pub unsafe fn list<'a, T>(data: *const T, len: usize, name: &str) -> Result<&'a [T], Error> {
    if len == 0 {
        return Ok(&[]);
    }
    let bytes = len.checked_mul(size_of::<T>());
    if data.is_null() || !data.is_aligned() || bytes.is_none_or(|n| n > isize::MAX as usize) {
        let found = match data.is_null() {
            true => "NULL",
            false => "a pointer that cannot be",
        };
        let message = format!("{name}: found {found} with a length of {len}");
        return Err(Error::argument(message));
    }
    // SAFETY: not null, aligned, of a possible size; the caller has promised the rest.
    Ok(unsafe { std::slice::from_raw_parts(data, len) })
}

/// A text.
///
/// # Safety
/// As [`list`].
///
/// # Errors
/// As [`list`]; bytes that are not UTF-8.
pub unsafe fn text<'a>(data: *const c_char, len: usize, name: &str) -> Result<&'a str, Error> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { list(data.cast::<u8>(), len, name) }?;
    let wrong = |at| Error::argument(format!("{name}: found a byte at {at} that is no UTF-8"));
    std::str::from_utf8(bytes).map_err(|e| wrong(e.valid_up_to()))
}

/// A text that may be absent.
///
/// # Safety
/// As [`list`].
///
/// # Errors
/// As [`text`].
pub unsafe fn maybe_text(
    data: *const c_char,
    len: usize,
    name: &str,
) -> Result<Option<String>, Error> {
    // SAFETY: the caller's promise.
    let text = unsafe { text(data, len, name) }?;
    Ok(Some(text.to_owned()).filter(|t| !t.is_empty()))
}

/// A place for a result.
///
/// # Safety
/// `out` is null or can be written to.
///
/// # Errors
/// A null pointer, or one that is not aligned.
pub unsafe fn place<'a, T>(out: *mut T, name: &str) -> Result<&'a mut MaybeUninit<T>, Error> {
    if out.is_null() || !out.is_aligned() {
        let message = format!("{name}: found NULL, expected a place for the result");
        return Err(Error::argument(message));
    }
    // SAFETY: not null and aligned; the caller has promised the rest.
    Ok(unsafe { &mut *out.cast::<MaybeUninit<T>>() })
}

/// Writes values to a buffer, or tells how many there are.
///
/// # Safety
/// `out` is null or has room for `capacity` values; `needed` is null or can be written to.
///
/// # Errors
/// A buffer that is too small; pointers that cannot be.
pub unsafe fn fill<T: Copy>(
    values: &[T],
    (out, capacity): (*mut T, usize),
    needed: *mut usize,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { place(needed, "needed") }?.write(values.len());
    if room((out, capacity), values.len())? {
        // SAFETY: there is room for so many, and what was just made does not overlap it.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), out, values.len()) };
    }
    Ok(OK)
}

/// Whether a buffer has room for so many values; false where the caller only asks how many there are.
///
/// # Errors
/// A buffer that is too small; pointers that cannot be.
pub fn room<T>((out, capacity): (*mut T, usize), len: usize) -> Result<bool, Error> {
    match (out.is_null(), capacity) {
        (true, 0) => Ok(false),
        (true, _) => Err(Error::argument(format!(
            "out: found NULL with a capacity of {capacity}"
        ))),
        (false, _) if !out.is_aligned() => {
            Err(Error::argument("out: found a pointer that cannot be"))
        }
        (false, _) if capacity < len => Err(Error::new(
            BUFFER,
            format!("the buffer has room for {capacity}, and {len} are needed"),
        )),
        _ => Ok(true),
    }
}

/// A struct of options or results of C: any bits are a value, and it begins with its size.
///
/// # Safety
/// `repr(C)`, made of numbers, pointers and optional functions alone, a `u32` first.
pub unsafe trait Sized32: Copy {
    /// A struct of zeros.
    // SAFETY: zeros are numbers, null pointers and absent functions.
    const NOTHING: Self = unsafe { std::mem::zeroed() };
    /// What its `..._INIT` sets.
    const INIT: Self;
}

/// Bytes of a struct as its caller declares them.
///
/// # Safety
/// `given` is null or points to as many bytes as its first `u32` says.
unsafe fn declared<T: Sized32>(given: *const T, name: &str) -> Result<usize, Error> {
    if given.is_null() || !given.is_aligned() {
        let message = format!("{name}: found NULL, expected a struct");
        return Err(Error::argument(message));
    }
    // SAFETY: not null and aligned, and a size comes first.
    let size = unsafe { given.cast::<u32>().read() } as usize;
    // A size that is no size of any version is what is left of a struct that was not set.
    if !(4..=size_of::<T>() + 4096).contains(&size) {
        let want = size_of::<T>();
        let message =
            format!("{name}: found a size of {size}, expected {want}; begin with its ..._INIT");
        return Err(Error::argument(message));
    }
    Ok(size)
}

/// Options as their caller gives them; the defaults where there are none, or where an older caller knows fewer.
///
/// # Safety
/// `given` is null or points to as many bytes as its first `u32` says.
///
/// # Errors
/// A size that cannot be; members that this version does not know.
pub unsafe fn options<T: Sized32>(given: *const T, name: &str) -> Result<T, Error> {
    let mut out = T::INIT;
    if given.is_null() {
        return Ok(out);
    }
    // SAFETY: the caller's promise.
    let size = unsafe { declared(given, name) }?;
    let known = size.min(size_of::<T>());
    let bytes = given.cast::<u8>();
    // SAFETY: the struct has `size` bytes, and those behind the known ones are bytes whatever they mean.
    let rest = unsafe { std::slice::from_raw_parts(bytes.add(known), size - known) };
    if rest.iter().any(|&b| b != 0) {
        let message = format!(
            "{name}: it says things that this version does not know, expected {known} bytes of it"
        );
        return Err(Error::argument(message));
    }
    // SAFETY: any bits are a value of `T`, and both have at least so many bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes, (&raw mut out).cast::<u8>(), known) };
    Ok(out)
}

/// Fills a struct as far as its caller knows it; its size stays.
///
/// # Safety
/// `out` is null or points to as many bytes as its first `u32` says.
///
/// # Errors
/// A size that cannot be.
pub unsafe fn deliver<T: Sized32>(value: &T, out: *mut T, name: &str) -> Outcome {
    // SAFETY: the caller's promise.
    let size = unsafe { declared(out, name) }?;
    let known = size.min(size_of::<T>());
    let from = (&raw const *value).cast::<u8>();
    // SAFETY: both have `known` bytes; the size in the first four stays.
    unsafe { std::ptr::copy_nonoverlapping(from.add(4), out.cast::<u8>().add(4), known - 4) };
    Ok(OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Choice {
        size: u32,
        a: u32,
        b: u32,
    }

    // SAFETY: three numbers, a size first.
    unsafe impl Sized32 for Choice {
        const INIT: Self = Choice {
            size: 12,
            a: 5,
            b: 6,
        };
    }

    #[test]
    fn older_structs_get_defaults_and_newer_ones_must_say_nothing_new() {
        let read = |words: &[u32; 5]| {
            // SAFETY: the array has as many bytes as it says, or says what is refused.
            unsafe { options(words.as_ptr().cast::<Choice>(), "choice") }
        };
        let older = read(&[8, 1, 2, 3, 4]).expect("older");
        assert_eq!((older.a, older.b), (1, 6));
        assert_eq!(read(&[12, 1, 2, 3, 4]).expect("same").b, 2);
        assert_eq!(read(&[16, 1, 2, 0, 4]).expect("newer").b, 2);
        assert!(read(&[16, 1, 2, 3, 4]).is_err() && read(&[0, 1, 2, 3, 4]).is_err());
        assert!(read(&[u32::MAX, 1, 2, 3, 4]).is_err());
        // SAFETY: null is allowed.
        let none = unsafe { options::<Choice>(std::ptr::null(), "choice") };
        assert_eq!(none.expect("none"), Choice::INIT);
    }

    #[test]
    fn a_panic_ends_at_the_border() {
        assert_eq!(guard(|| panic!("boo")), INTERNAL);
        let kept = status::take().expect("kept");
        assert_eq!(kept.message, "an internal error: boo");
        assert!(status::take().is_none());
    }

    #[test]
    fn buffers_are_filled_whole_or_not_at_all() {
        let (mut out, mut needed) = ([0u8; 3], 0usize);
        let values = [1u8, 2, 3];
        let mut ask = |capacity: usize, null: bool| {
            let to = match null {
                true => std::ptr::null_mut(),
                false => out.as_mut_ptr(),
            };
            // SAFETY: there is room for three.
            let outcome = unsafe { fill(&values, (to, capacity), &raw mut needed) };
            (outcome.map_err(|e| e.code), needed, out)
        };
        assert_eq!(ask(0, true), (Ok(OK), 3, [0; 3]));
        assert_eq!(ask(2, false), (Err(BUFFER), 3, [0; 3]));
        assert_eq!(ask(3, true).0, Err(status::ARGUMENT));
        assert_eq!(ask(3, false), (Ok(OK), 3, [1, 2, 3]));
    }
}
