//! The models of a server: which there are, which are in memory, and who leaves when another needs the room.
//!
//! A model in memory is lent as an `Arc`. Its place holds one itself, so one that nobody else holds is idle and may leave.
//! One model is loaded at a time: what the others take is known then. A load goes on when whoever asked for it has left.

mod offer;
mod place;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::app::aside;
use crate::error::{ApiError, Result};
use crate::metrics::Metrics;
use crate::options::ModelLimits;
use crate::params::Defaults;
use crate::served::{Named, Served};
use crate::speech::Hearing;

pub use offer::{Kind, Library, Offer, Open, Opened, Stock};
pub(crate) use place::{About, Keep, Loaded};
use place::{Place, State};

/// How often it is looked whether somebody has left a model or may make room.
const LOOK: Duration = Duration::from_millis(20);

/// All models that a server knows.
pub(crate) struct Fleet {
    limits: ModelLimits,
    strict: bool,
    defaults: Defaults,
    queue: usize,
    library: Option<Arc<dyn Library>>,
    places: Mutex<Vec<Place>>,
    /// Whose turn it is to load.
    turn: tokio::sync::Mutex<()>,
}

/// How requests are answered, whichever model does.
pub(crate) struct Rules {
    pub(crate) limits: ModelLimits,
    /// No name stands for another.
    pub(crate) strict: bool,
    pub(crate) defaults: Defaults,
    /// Answers of a model that may wait.
    pub(crate) queue: usize,
}

impl Fleet {
    pub(crate) fn new(rules: Rules, stock: Stock) -> Self {
        let Rules {
            limits,
            strict,
            defaults,
            queue,
        } = rules;
        let fleet = Fleet {
            limits,
            strict,
            defaults,
            queue,
            library: stock.library,
            places: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        };
        let places = stock.offers.into_iter().map(|o| fleet.place(o, false));
        let places = places.collect();
        *fleet.places() = places;
        fleet.rescan();
        fleet
    }

    fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, mut offer: Offer, from_library: bool) -> Place {
        let opened = offer.opened.take();
        let mut place = Place::new(offer, from_library);
        if let Some(opened) = opened {
            place.state = State::Here(self.lend(&place, opened));
            place.was_here = true;
        }
        place
    }

    fn lend(&self, place: &Place, opened: Opened) -> Loaded {
        match opened {
            Opened::Text {
                service,
                borrowed_template,
            } => {
                let named = Named {
                    id: place.about.id.clone(),
                    aliases: place.about.aliases.clone(),
                    tags: place.about.tags.clone(),
                    service: *service,
                    borrowed_template,
                };
                let mut served = Served::new(named, self.defaults.clone(), self.queue);
                served.metrics = Arc::clone(&place.metrics);
                Loaded::Text(Arc::new(served))
            }
            Opened::Speech(listener) => {
                let hearing = Hearing::new(place.about.id.clone(), *listener, self.queue);
                Loaded::Speech(Arc::new(hearing))
            }
        }
    }

    /// Where models are found and made.
    pub(crate) fn library(&self) -> Result<&Arc<dyn Library>> {
        let library = self.library.as_ref().filter(|_| self.limits.changes);
        library.ok_or_else(|| {
            ApiError::unsupported(
                "models are not pulled, made or removed over HTTP here; use the command line, or start the server with --allow-pull",
            )
        })
    }

    /// Models that the library has by now, without those that it has lost.
    fn rescan(&self) {
        let Some(library) = &self.library else { return };
        let found = library.scan();
        let mut places = self.places();
        places.retain(|place| {
            let lost = || found.iter().all(|offer| offer.id != place.about.id);
            let away = matches!(place.state, State::Away | State::Failed(_));
            !(place.from_library && away && lost())
        });
        for offer in found {
            if places.iter().all(|place| place.about.id != offer.id) {
                let place = self.place(offer, true);
                places.push(place);
            }
        }
    }

    /// Adds a model that was fetched or made.
    pub(crate) fn add(&self, offer: Offer) {
        let mut places = self.places();
        if places.iter().all(|place| place.about.id != offer.id) {
            let place = self.place(offer, false);
            places.push(place);
        }
    }

    /// All models, newly found ones included, with what is in memory.
    pub(crate) fn list(&self) -> Vec<About> {
        self.rescan();
        let idle = self.limits.idle;
        self.places().iter().map(|p| p.about(idle)).collect()
    }

    /// The models that write or give vectors and are in memory.
    pub(crate) fn here_all(&self) -> Vec<Arc<Served>> {
        let places = self.places();
        let text = places.iter().filter_map(|place| match &place.state {
            State::Here(Loaded::Text(model)) => Some(Arc::clone(model)),
            _ => None,
        });
        text.collect()
    }

    /// What was counted of each model that was ever in memory, with the model where it still is.
    pub(crate) fn counted(&self) -> Vec<(String, Arc<Metrics>, Option<Arc<Served>>)> {
        let places = self.places();
        let text = |place: &&Place| place.about.kind == Kind::Text;
        let seen = places.iter().filter(text).filter(|place| place.was_here);
        let one = |place: &Place| {
            let here = match &place.state {
                State::Here(Loaded::Text(model)) => Some(Arc::clone(model)),
                _ => None,
            };
            let metrics = Arc::clone(&place.metrics);
            (place.about.id.clone(), metrics, here)
        };
        seen.map(one).collect()
    }

    /// Whether models come and go by themselves, so that requests have a say in how long they stay.
    pub(crate) fn swaps(&self) -> bool {
        self.library.is_some() || self.limits.idle.is_some() || self.places().len() > 1
    }

    /// What is known of the model that is called so, in memory or not.
    pub(crate) fn about(&self, name: Option<&str>) -> Result<About> {
        let id = self.resolve(name, None)?;
        let places = self.places();
        let place = places.iter().find(|place| place.about.id == id);
        place
            .map(|place| place.about(self.limits.idle))
            .ok_or_else(|| unknown(&id, &places))
    }

    /// The model that writes or gives vectors under this name, loaded if need be.
    pub(crate) async fn text(self: &Arc<Self>, name: Option<&str>) -> Result<Arc<Served>> {
        match self.get(name, Kind::Text).await? {
            Loaded::Text(model) => Ok(model),
            Loaded::Speech(_) => Err(ApiError::field(
                "model",
                "it hears speech; ask it at /v1/audio/transcriptions",
            )),
        }
    }

    /// The model that hears under this name, loaded if need be.
    pub(crate) async fn speech(self: &Arc<Self>, name: Option<&str>) -> Result<Arc<Hearing>> {
        match self.get(name, Kind::Speech).await? {
            Loaded::Speech(model) => Ok(model),
            Loaded::Text(_) => Err(ApiError::field(
                "model",
                "it hears no speech; name a model of speech",
            )),
        }
    }

    async fn get(self: &Arc<Self>, name: Option<&str>, kind: Kind) -> Result<Loaded> {
        let id = self.resolve(name, Some(kind))?;
        if let Some(here) = self.here(&id) {
            return Ok(here);
        }
        if !self.limits.on_request {
            let text = format!("the model '{id}' is not loaded; load it with POST /v1/models/load");
            return Err(ApiError::unavailable(text));
        }
        self.load(id).await
    }

    /// The id of the model that is called so. Where one model of a kind is served, it answers to any name, unless names
    /// are strict.
    fn resolve(&self, name: Option<&str>, kind: Option<Kind>) -> Result<String> {
        let find = || {
            let places = self.places();
            let mut fits = places
                .iter()
                .filter(|p| kind.is_none_or(|kind| p.about.kind == kind));
            let id = |place: &Place| place.about.id.clone();
            let Some(name) = name.filter(|n| !n.is_empty()) else {
                return fits.next().map(id);
            };
            let named = places.iter().find(|place| place.about.is_called(name));
            let only = || match (fits.next(), fits.next(), self.strict) {
                (Some(place), None, false) if self.library.is_none() => Some(place),
                _ => None,
            };
            named.or_else(only).map(id)
        };
        if let Some(id) = find() {
            return Ok(id);
        }
        self.rescan();
        find().ok_or_else(|| match (name, kind) {
            (None | Some(""), Some(Kind::Speech)) => ApiError::unsupported(
                "no model that hears is served; start the server with one, such as -m ggml-base.bin",
            ),
            (name, _) => unknown(name.unwrap_or_default(), &self.places()),
        })
    }

    fn here(&self, id: &str) -> Option<Loaded> {
        let mut places = self.places();
        let place = places.iter_mut().find(|place| place.about.id == id)?;
        place.used = Instant::now();
        match &place.state {
            State::Here(loaded) => Some(loaded.clone()),
            _ => None,
        }
    }

    /// Loads a model, unless it is there.
    ///
    /// # Errors
    /// A file that cannot be loaded; no room, since the others are in use.
    pub(crate) async fn load(self: &Arc<Self>, id: String) -> Result<Loaded> {
        let fleet = Arc::clone(self);
        let work = tokio::spawn(async move { fleet.bring(&id).await });
        let gone = |_| ApiError::internal("the model could not be loaded: an internal error");
        work.await.map_err(gone)?
    }

    async fn bring(&self, id: &str) -> Result<Loaded> {
        let _turn = self.turn.lock().await;
        if let Some(here) = self.here(id) {
            return Ok(here);
        }
        let opener = self.change(id, |place| {
            place.state = State::Loading;
            place.opener.clone()
        });
        let opener = opener.flatten().ok_or_else(|| {
            ApiError::internal(format!("the model '{id}' cannot be loaded again"))
        })?;
        let began = Instant::now();
        match self.open(id, opener).await {
            Ok(opened) => {
                let lent = self.change(id, |place| {
                    let loaded = self.lend(place, opened);
                    place.state = State::Here(loaded.clone());
                    place.was_here = true;
                    place.used = Instant::now();
                    loaded
                });
                let seconds = began.elapsed().as_secs_f64();
                tracing::info!(target: "tokkata::models", model = id, seconds, "loaded");
                lent.ok_or_else(|| unknown(id, &self.places()))
            }
            Err(error) => {
                tracing::warn!(target: "tokkata::models", model = id, error = error.message, "not loaded");
                self.change(id, |place| {
                    place.state = State::Failed(error.message.clone());
                });
                Err(error)
            }
        }
    }

    fn change<T>(&self, id: &str, change: impl FnOnce(&mut Place) -> T) -> Option<T> {
        let mut places = self.places();
        let place = places.iter_mut().find(|place| place.about.id == id);
        place.map(change)
    }

    async fn open(&self, id: &str, opener: Arc<dyn Open>) -> Result<Opened> {
        let budget = self.limits.bytes.unwrap_or(u64::MAX);
        let fail = |text: String| ApiError::internal(format!("{id} could not be loaded: {text}"));
        let need = {
            let opener = Arc::clone(&opener);
            let need = aside(move || opener.need(budget).map_err(ApiError::internal)).await;
            need.map_err(|e| fail(e.message))?
        };
        self.make_room(id, need).await?;
        let opened = aside(move || opener.open(budget).map_err(ApiError::internal)).await;
        opened.map_err(|e| fail(e.message))
    }

    /// Lets idle models go, the one unused longest first, until there is room for `need` more bytes.
    async fn make_room(&self, id: &str, need: u64) -> Result<()> {
        if let Some(all) = self.limits.bytes.filter(|&all| need > all) {
            let text = format!(
                "{id} needs {need} bytes, and all models together may have {all}; start the server with a larger --models-memory"
            );
            return Err(ApiError::unavailable(text));
        }
        let end = Instant::now() + self.limits.patience;
        while !self.has_room(need) {
            match self.take_idle() {
                Some((id, idle)) => close(&id, idle).await,
                None if Instant::now() < end => tokio::time::sleep(LOOK).await,
                None => {
                    let text =
                        format!("there is no room for {id}: the models in memory are in use");
                    return Err(ApiError::overloaded(text, 5));
                }
            }
        }
        Ok(())
    }

    fn has_room(&self, need: u64) -> bool {
        let places = self.places();
        let here = places.iter().filter_map(|place| match &place.state {
            State::Here(loaded) => Some(loaded.bytes()),
            _ => None,
        });
        let (count, bytes) = here.fold((0, need), |(n, all), one| (n + 1, one.saturating_add(all)));
        self.limits.bytes.is_none_or(|most| bytes <= most)
            && self.limits.most.is_none_or(|most| count < most)
    }

    /// Takes the model that nobody has used longest out of its place.
    fn take_idle(&self) -> Option<(String, Loaded)> {
        let mut places = self.places();
        let idle = places.iter_mut().filter(|place| place.may_leave());
        let place = idle.min_by_key(|place| place.used)?;
        Some((place.about.id.clone(), place.leave()?))
    }

    /// Takes a model out of memory when nobody uses it any more, though not for ever.
    ///
    /// # Errors
    /// One that stays in use; one that could not be loaded again.
    pub(crate) async fn unload(&self, name: Option<&str>) -> Result<()> {
        let id = self.resolve(name, None)?;
        let end = Instant::now() + self.limits.patience;
        loop {
            let out = self.change(&id, |place| {
                if place.opener.is_none() {
                    return Err(ApiError::invalid(format!(
                        "the model '{id}' was given to the server and stays"
                    )));
                }
                let out = place.may_leave().then(|| place.leave()).flatten();
                let over = out.is_none() && !matches!(place.state, State::Here(_) | State::Loading);
                Ok((out, over))
            });
            match out.unwrap_or(Ok((None, true)))? {
                (Some(loaded), _) => {
                    close(&id, loaded).await;
                    return Ok(());
                }
                (None, true) => return Ok(()),
                (None, false) if Instant::now() < end => tokio::time::sleep(LOOK).await,
                (None, false) => {
                    let text = format!("the model '{id}' is in use");
                    return Err(ApiError::overloaded(text, 5));
                }
            }
        }
    }

    /// Notes how long a model is to stay when nobody uses it.
    pub(crate) fn keep(&self, id: &str, keep: Keep) {
        self.change(id, |place| place.keep = Some(keep));
    }

    /// Forgets a model whose file is gone.
    pub(crate) fn forget(&self, id: &str) {
        self.places().retain(|place| place.about.id != id);
    }

    /// Takes out of memory what nobody has used for long enough.
    pub(crate) async fn sweep(&self) {
        let now = Instant::now();
        let mut gone = Vec::new();
        for place in self.places().iter_mut() {
            let idle = place.may_leave();
            if !idle {
                place.used = now;
                continue;
            }
            let limit = place.keep.map_or(self.limits.idle, Keep::limit);
            if limit.is_some_and(|limit| now.duration_since(place.used) >= limit) {
                let id = place.about.id.clone();
                gone.extend(place.leave().map(|loaded| (id, loaded)));
            }
        }
        for (id, loaded) in gone {
            close(&id, loaded).await;
        }
    }
}

/// Frees a model's memory, beside the threads that serve.
async fn close(id: &str, loaded: Loaded) {
    let closed = aside(move || {
        loaded.close();
        Ok(())
    });
    if closed.await.is_ok() {
        tracing::info!(target: "tokkata::models", model = id, "unloaded");
    }
}

fn unknown(name: &str, places: &[Place]) -> ApiError {
    const SHOWN: usize = 20;
    let mut known: Vec<&str> = places.iter().map(|p| p.about.id.as_str()).collect();
    let more = if known.len() > SHOWN {
        ", and others"
    } else {
        ""
    };
    known.truncate(SHOWN);
    let known = known.join(", ");
    ApiError {
        param: Some("model".to_owned()),
        ..ApiError::not_found(format!(
            "The model '{name}' does not exist; known are {known}{more}"
        ))
    }
}
