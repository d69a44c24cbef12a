//! The library itself: version, messages, errors, devices.

use std::ffi::{c_char, c_void};
use std::sync::{PoisonError, RwLock};

use serde_json::{Value, json};

use crate::border::{fill, guard, place};
use crate::handle::Table;
use crate::status::{self, Error, OK};
use crate::types::{tokkata_error, tokkata_log_fn};

static ERRORS: Table<Error> = Table::new();

/// Where messages go.
#[derive(Clone, Copy)]
struct Log {
    call: tokkata_log_fn,
    user: usize,
}

static LOG: RwLock<Log> = RwLock::new(Log {
    call: None,
    user: 0,
});

/// Level of a message about what is wrong.
pub(crate) const LOG_ERROR: i32 = 1;
/// Level of a message about what was done.
pub(crate) const LOG_INFO: i32 = 3;

/// Tells whoever listens.
pub(crate) fn log(level: i32, text: &str) {
    let log = *LOG.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(call) = log.call {
        let user = std::ptr::with_exposed_provenance_mut::<c_void>(log.user);
        // SAFETY: the text lives during the call; the caller gave function and user for it.
        unsafe { call(user, level, text.as_ptr().cast(), text.len()) };
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn tokkata_abi_version() -> i32 {
    1
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_version(text: *mut *const c_char, len: *mut usize) -> i32 {
    guard(|| {
        const VERSION: &str = env!("CARGO_PKG_VERSION");
        // SAFETY: places of the caller.
        unsafe { text_ref(VERSION, text, len) }
    })
}

/// A text that stays where it is.
///
/// # Safety
/// The places are null or can be written to.
pub(crate) unsafe fn text_ref(
    from: &str,
    text: *mut *const c_char,
    len: *mut usize,
) -> status::Outcome {
    // SAFETY: the caller's promise.
    let (text, len) = unsafe { (place(text, "text")?, place(len, "len")?) };
    text.write(from.as_ptr().cast());
    len.write(from.len());
    Ok(OK)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_set_log(log: tokkata_log_fn, user: *mut c_void) -> i32 {
    guard(|| {
        static HOOK: std::sync::Once = std::sync::Once::new();
        *LOG.write().unwrap_or_else(PoisonError::into_inner) = Log {
            call: log,
            user: user.expose_provenance(),
        };
        HOOK.call_once(|| {
            std::panic::set_hook(Box::new(|info| self::log(LOG_ERROR, &info.to_string())));
        });
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_devices(
    out: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    guard(|| {
        let one = |(name, what): (String, String)| json!({"name": name, "description": what});
        let text = Value::from_iter(tokkata::present().into_iter().map(one)).to_string();
        // SAFETY: the caller's buffer.
        unsafe { fill(text.as_bytes(), (out.cast(), capacity), needed) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_error_take(out: *mut *mut tokkata_error) -> i32 {
    guard(|| {
        // SAFETY: the caller's place.
        let out = unsafe { place(out, "out") }?;
        out.write(status::take().map_or(std::ptr::null_mut(), |error| ERRORS.add(error)));
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_error_code(error: *const tokkata_error, code: *mut i32) -> i32 {
    guard(|| {
        let error = ERRORS.get(error)?;
        // SAFETY: the caller's place.
        unsafe { place(code, "code") }?.write(error.code);
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_error_message(
    error: *const tokkata_error,
    text: *mut *const c_char,
    len: *mut usize,
) -> i32 {
    // SAFETY: the caller's places; the text lives as long as the error, which its handle keeps.
    guard(|| unsafe { text_ref(&ERRORS.get(error)?.message, text, len) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_error_field(
    error: *const tokkata_error,
    text: *mut *const c_char,
    len: *mut usize,
) -> i32 {
    // SAFETY: the caller's places; the text lives as long as the error, which its handle keeps.
    guard(|| unsafe { text_ref(&ERRORS.get(error)?.field, text, len) })
}

#[unsafe(no_mangle)]
pub extern "C" fn tokkata_error_free(error: *mut tokkata_error) -> i32 {
    guard(|| {
        ERRORS.remove(error)?;
        Ok(OK)
    })
}
