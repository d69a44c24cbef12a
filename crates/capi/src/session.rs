//! Sessions and steps by hand.

use std::ffi::{c_char, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tokkata::{EventKind, FeedLogits, Feeding, RowKind, Session};

use crate::border::{fill, guard, list, options, place, room, text};
use crate::handle::Table;
use crate::model::{Loaded, model};
use crate::request::{alone, sampling};
use crate::status::{Error, OK};
use crate::tokens::known;
use crate::types::{
    tokkata_feed, tokkata_model, tokkata_sampling, tokkata_session, tokkata_tap_fn,
};

static SESSIONS: Table<Open> = Table::new();

/// A session and its model.
pub(crate) struct Open {
    pub(crate) inner: ManuallyDrop<Mutex<Session>>,
    model: Arc<Loaded>,
}

impl Drop for Open {
    fn drop(&mut self) {
        // The thread that it would ask is the parent's.
        if self.model.home.is_here() {
            // SAFETY: nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        }
    }
}

fn add(session: Session, model: &Arc<Loaded>) -> *mut tokkata_session {
    SESSIONS.add(Open {
        inner: ManuallyDrop::new(Mutex::new(session)),
        model: Arc::clone(model),
    })
}

/// The session of a handle.
pub(crate) fn session(handle: *const tokkata_session) -> Result<Arc<Open>, Error> {
    let session = SESSIONS.get(handle)?;
    session.model.home.check()?;
    Ok(session)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_session_open(
    model: *const tokkata_model,
    out: *mut *mut tokkata_session,
) -> i32 {
    guard(|| {
        let model = self::model(model)?;
        // SAFETY: the caller's place.
        let out = unsafe { place(out, "out") }?;
        out.write(add(model.service()?.open_session()?, &model));
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn tokkata_session_free(session: *mut tokkata_session) -> i32 {
    guard(|| {
        SESSIONS.remove(session)?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_session_position(
    session: *const tokkata_session,
    position: *mut usize,
) -> i32 {
    guard(|| {
        let session = self::session(session)?;
        // SAFETY: the caller's place.
        let place = unsafe { place(position, "position") }?;
        place.write(alone(&session.inner, "session")?.position()?);
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_session_tokens(
    session: *const tokkata_session,
    out: *mut u32,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    guard(|| {
        let session = self::session(session)?;
        let tokens = alone(&session.inner, "session")?.tokens()?;
        // SAFETY: the caller's buffer.
        unsafe { fill(&tokens, (out, capacity), needed) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_session_append(
    session: *mut tokkata_session,
    ids: *const u32,
    n: usize,
) -> i32 {
    guard(|| {
        let session = self::session(session)?;
        // SAFETY: the caller's list.
        let ids = unsafe { known(&session.model, ids, n) }?;
        alone(&session.inner, "session")?.append(ids)?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn tokkata_session_rollback(session: *mut tokkata_session, position: usize) -> i32 {
    guard(|| {
        let session = self::session(session)?;
        alone(&session.inner, "session")?.rollback(position)?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_session_fork(
    session: *const tokkata_session,
    out: *mut *mut tokkata_session,
) -> i32 {
    guard(|| {
        let session = self::session(session)?;
        // SAFETY: the caller's place.
        let out = unsafe { place(out, "out") }?;
        let copy = alone(&session.inner, "session")?.fork()?;
        out.write(add(copy, &session.model));
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_session_save(
    session: *const tokkata_session,
    path: *const c_char,
    path_len: usize,
) -> i32 {
    guard(|| {
        let session = self::session(session)?;
        // SAFETY: the caller's text.
        let path = unsafe { text(path, path_len, "path") }?;
        alone(&session.inner, "session")?.save(Path::new(path))?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_session_load(
    model: *const tokkata_model,
    path: *const c_char,
    path_len: usize,
    out: *mut *mut tokkata_session,
) -> i32 {
    // SAFETY: pointers of the caller, as the header says.
    guard(|| unsafe {
        let model = self::model(model)?;
        let (path, out) = (text(path, path_len, "path")?, place(out, "out")?);
        let session = model.service()?.load_session(Path::new(path))?;
        out.write(add(session, &model));
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_step(
    feeds: *const tokkata_feed,
    n_feeds: usize,
    out: *mut f32,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's list.
        let feeds = unsafe { list(feeds, n_feeds, "feeds") }?;
        let none = || Error::argument("feeds: found none, expected one at least");
        let open: Result<Vec<Arc<Open>>, Error> =
            feeds.iter().map(|f| session(f.session)).collect();
        let open = open?;
        let model = Arc::clone(&open.first().ok_or_else(none)?.model);
        if open.iter().any(|o| !Arc::ptr_eq(&o.model, &model)) {
            return Err(Error::argument("feeds: the sessions are of several models"));
        }
        let held: Result<Vec<_>, Error> = open.iter().map(|o| alone(&o.inner, "session")).collect();
        let held = held?;
        let (mut parts, mut rows) = (Vec::new(), 0);
        for (feed, session) in feeds.iter().zip(&held) {
            // SAFETY: the caller's list.
            let tokens = unsafe { known(&model, feed.tokens, feed.n_tokens) }?;
            let logits = match feed.logits {
                0 => FeedLogits::None,
                1 => FeedLogits::Last,
                2 => FeedLogits::All,
                other => {
                    let message = format!("logits: found {other}, expected 0 to 2");
                    return Err(Error::argument(message));
                }
            };
            rows += match logits {
                FeedLogits::None => 0,
                FeedLogits::Last => 1,
                FeedLogits::All => tokens.len(),
            };
            parts.push(Feeding {
                session,
                tokens,
                rows: match feed.answers {
                    0 => RowKind::Prompt,
                    _ => RowKind::Answer,
                },
                logits,
            });
        }
        let width = model.service()?.n_vocab() as usize;
        // SAFETY: the caller's place.
        unsafe { place(needed, "needed") }?.write(rows * width);
        if !room((out, capacity), rows * width)? && rows > 0 {
            return Ok(OK);
        }
        let logits = model.service()?.step(&parts)?;
        // SAFETY: the caller's buffer has room.
        unsafe { fill(&logits, (out, capacity), needed) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_prefill(
    session: *mut tokkata_session,
    ids: *const u32,
    n: usize,
    out: *mut f32,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    // SAFETY: pointers of the caller, as the header says.
    guard(|| unsafe {
        let session = self::session(session)?;
        let ids = known(&session.model, ids, n)?;
        let width = session.model.service()?.n_vocab() as usize;
        place(needed, "needed")?.write(width);
        if !room((out, capacity), width)? {
            return Ok(OK);
        }
        let logits = alone(&session.inner, "session")?.prefill(ids)?;
        fill(&logits, (out, capacity), needed)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_chain(
    session: *mut tokkata_session,
    last: u32,
    sampling: *const tokkata_sampling,
    out: *mut u32,
    n: usize,
    n_out: *mut usize,
) -> i32 {
    // SAFETY: pointers of the caller, as the header says.
    guard(|| unsafe {
        let open = self::session(session)?;
        known(&open.model, &raw const last, 1)?;
        let count = place(n_out, "n_out")?;
        if n > 0 && !room((out, n), n)? {
            return Err(Error::argument(
                "out: found NULL, expected room for the tokens",
            ));
        }
        let session = alone(&open.inner, "session")?;
        let mut prompt = session.tokens()?;
        prompt.push(last);
        let mut request = open.model.service()?.request(prompt)?;
        request.decoder = None;
        request.sampling = self::sampling(&options(sampling, "sampling")?, &[]);
        request.stop.max_tokens = Some(n);
        let mut answer = session.generate(request);
        let mut tokens = Vec::with_capacity(n);
        while let Some(event) = answer.next_blocking() {
            match event {
                EventKind::Token { id, .. } => tokens.push(id),
                EventKind::Failed(error) => return Err(error.into()),
                _ => {}
            }
        }
        tokens.truncate(n);
        std::ptr::copy_nonoverlapping(tokens.as_ptr(), out, tokens.len());
        count.write(tokens.len());
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_taps(
    model: *const tokkata_model,
    ids: *const u32,
    n: usize,
    each: tokkata_tap_fn,
    user: *mut c_void,
) -> i32 {
    // SAFETY: pointers of the caller, as the header says.
    guard(|| unsafe {
        let model = self::model(model)?;
        let ids = known(&model, ids, n)?;
        let each = each.ok_or_else(|| Error::argument("each: found NULL, expected a function"))?;
        for tap in model.service()?.taps(ids)? {
            let name = (tap.name.as_ptr().cast(), tap.name.len());
            let rows = tap.values.len() / tap.width.max(1);
            if each(user, name.0, name.1, tap.values.as_ptr(), rows, tap.width) != 0 {
                break;
            }
        }
        Ok(OK)
    })
}
