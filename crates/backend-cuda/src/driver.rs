//! The driver's calls behind types that free what they hold. The library is looked for when it is needed first.
//!
//! Everything that is `unsafe` in this crate is here. Addresses of device memory are plain numbers: what a kernel does
//! with them is checked by the suite and by `compute-sanitizer`, not by types.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys;

/// What the driver said, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) what: &'static str,
    pub(crate) code: u32,
    pub(crate) text: String,
}

impl Fault {
    /// Whether memory was short.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.code == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.what, self.text)
    }
}

pub(crate) type Result<T> = std::result::Result<T, Fault>;

fn check(what: &'static str, code: sys::CUresult) -> Result<()> {
    if code == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = std::ptr::null();
    // SAFETY: the driver sets `text` to a string of its own, or leaves it null.
    let found = unsafe {
        sys::cuGetErrorString(code, &raw mut text);
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    Err(Fault {
        what,
        code: code as u32,
        text: found.unwrap_or_else(|| format!("error {}", code as u32)),
    })
}

/// Calls the driver and checks its answer.
macro_rules! call {
    ($name:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: arguments are handles and addresses that this module made and has not freed, or places for answers.
        check(stringify!($name), unsafe { sys::$name($($arg),*) })
    };
}

/// The first version whose graphs hold kernels that begin before the one before them ends.
const EARLY_VERSION: i32 = 12030;

/// Whether the driver replays kernels that begin early.
pub(crate) fn begins_early() -> bool {
    let mut version = 0;
    let asked = call!(cuDriverGetVersion(&raw mut version));
    asked.is_ok() && version >= EARLY_VERSION
}

/// The least version of the driver's interface: CUDA 12.0.
const LEAST_VERSION: i32 = 12000;

/// Why there is no driver, or how many devices it has.
pub(crate) fn devices() -> std::result::Result<usize, String> {
    static FOUND: OnceLock<std::result::Result<usize, String>> = OnceLock::new();
    FOUND.get_or_init(probe).clone()
}

fn probe() -> std::result::Result<usize, String> {
    // SAFETY: loading the driver's library runs its initialisers, which is what a user of it wants.
    if !unsafe { sys::is_culib_present() } {
        return Err("no CUDA driver was found (libcuda)".to_owned());
    }
    let mut version = 0;
    call!(cuDriverGetVersion(&raw mut version)).map_err(|e| e.to_string())?;
    if version < LEAST_VERSION {
        let (major, minor) = (version / 1000, version % 1000 / 10);
        return Err(format!(
            "the CUDA driver speaks version {major}.{minor}; 12.0 or newer is needed"
        ));
    }
    call!(cuInit(0)).map_err(|e| format!("the CUDA driver does not start: {e}"))?;
    let mut count = 0;
    call!(cuDeviceGetCount(&raw mut count)).map_err(|e| e.to_string())?;
    Ok(count as usize)
}

/// A device's primary context.
#[derive(Debug)]
pub(crate) struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: contexts may be used from every thread that has made them current.
unsafe impl Send for Context {}
// SAFETY: as above; the driver's calls are safe to make at the same time.
unsafe impl Sync for Context {}

impl Context {
    pub(crate) fn new(index: usize) -> Result<Arc<Self>> {
        let (mut device, mut context) = (0, std::ptr::null_mut());
        call!(cuDeviceGet(&raw mut device, index as i32))?;
        call!(cuDevicePrimaryCtxRetain(&raw mut context, device))?;
        Ok(Arc::new(Context { device, context }))
    }

    /// Makes it the calling thread's.
    pub(crate) fn bind(&self) -> Result<()> {
        call!(cuCtxSetCurrent(self.context))
    }

    pub(crate) fn name(&self) -> Result<String> {
        let mut text = [0u8; 256];
        call!(cuDeviceGetName(
            text.as_mut_ptr().cast(),
            text.len() as i32,
            self.device
        ))?;
        let end = text.iter().position(|&b| b == 0).unwrap_or(0);
        Ok(String::from_utf8_lossy(&text[..end]).into_owned())
    }

    fn attribute(&self, attribute: sys::CUdevice_attribute) -> Result<u32> {
        let mut value = 0;
        call!(cuDeviceGetAttribute(&raw mut value, attribute, self.device))?;
        Ok(value as u32)
    }

    /// Compute capability, such as (9, 0).
    pub(crate) fn capability(&self) -> Result<(u32, u32)> {
        use sys::CUdevice_attribute as A;
        Ok((
            self.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            self.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ))
    }

    /// Multiprocessors.
    pub(crate) fn processors(&self) -> Result<u32> {
        self.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
    }

    /// Bytes of shared memory that a block may ask for, where all blocks of a launch may run at once; 0 where they may not.
    pub(crate) fn shared_together(&self) -> Result<u32> {
        use sys::CUdevice_attribute as A;
        match self.attribute(A::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)? {
            0 => Ok(0),
            _ => self.attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        }
    }

    /// Free and total bytes.
    pub(crate) fn memory(&self) -> Result<(u64, u64)> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        call!(cuMemGetInfo_v2(&raw mut free, &raw mut total))?;
        Ok((free as u64, total as u64))
    }

    pub(crate) fn alloc(self: &Arc<Self>, bytes: u64) -> Result<Buffer> {
        self.bind()?;
        let mut at = 0;
        call!(cuMemAlloc_v2(&raw mut at, bytes.max(16) as usize))?;
        Ok(Buffer {
            context: Arc::clone(self),
            at,
            bytes,
        })
    }

    /// Copies what lies at an address of the device.
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.bind()?;
        call!(cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), at, out.len()))
    }

    /// Memory that holds these bytes.
    pub(crate) fn upload<T: bytemuck::NoUninit>(self: &Arc<Self>, data: &[T]) -> Result<Buffer> {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let buffer = self.alloc(bytes.len() as u64)?;
        call!(cuMemcpyHtoD_v2(
            buffer.at,
            bytes.as_ptr().cast(),
            bytes.len()
        ))?;
        Ok(buffer)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let _ = call!(cuDevicePrimaryCtxRelease_v2(self.device));
    }
}

/// Device memory.
#[derive(Debug)]
pub(crate) struct Buffer {
    context: Arc<Context>,
    at: u64,
    bytes: u64,
}

impl Buffer {
    /// Its address.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sets every word, and waits until that is done.
    pub(crate) fn fill(&self, word: u32) -> Result<()> {
        // On a stream of its own: the whole context cannot be waited for while another thread captures.
        let stream = Stream::new(&self.context)?;
        let words = (self.bytes / 4) as usize;
        call!(cuMemsetD32Async(self.at, word, words, stream.stream))?;
        stream.synchronize()
    }

    /// Copies bytes to it, and waits for them.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        assert!(
            offset + data.len() as u64 <= self.bytes,
            "bytes of the buffer"
        );
        self.context.bind()?;
        call!(cuMemcpyHtoD_v2(
            self.at + offset,
            data.as_ptr().cast(),
            data.len()
        ))
    }

    /// Copies bytes from it, and waits for them.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        assert!(
            offset + out.len() as u64 <= self.bytes,
            "bytes of the buffer"
        );
        self.context.bind()?;
        call!(cuMemcpyDtoH_v2(
            out.as_mut_ptr().cast(),
            self.at + offset,
            out.len()
        ))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let _ = self.context.bind();
        let _ = call!(cuMemFree_v2(self.at));
    }
}

/// Host memory that the device reads and writes.
#[derive(Debug)]
pub(crate) struct Pinned {
    context: Arc<Context>,
    at: *mut c_void,
    words: usize,
}

// SAFETY: it is owned memory; whoever shares it goes through atomics.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Zeros.
    pub(crate) fn new(context: &Arc<Context>, words: usize) -> Result<Self> {
        context.bind()?;
        let mut at = std::ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
        call!(cuMemHostAlloc(&raw mut at, words.max(1) * 4, flags))?;
        // SAFETY: the driver gave so many bytes at `at`.
        unsafe { std::ptr::write_bytes(at.cast::<u8>(), 0, words * 4) };
        Ok(Pinned {
            context: Arc::clone(context),
            at,
            words,
        })
    }

    /// Its words, which the device may change at any time.
    pub(crate) fn words(&self) -> &[AtomicU32] {
        // SAFETY: so many words are there for as long as `self` is, aligned, and only seen as atomics.
        unsafe { std::slice::from_raw_parts(self.at.cast(), self.words) }
    }

    /// Writes words from one on, while nobody else does and the device leaves them alone.
    pub(crate) fn write(&self, first: usize, words: &[u32]) {
        assert!(first + words.len() <= self.words, "words of the memory");
        let from = words.as_ptr();
        // SAFETY: so many words are there behind `first`, and no reference to them is.
        unsafe {
            std::ptr::copy_nonoverlapping(from, self.at.cast::<u32>().add(first), words.len());
        };
    }

    /// Its bytes, while the device leaves them alone.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the caller has waited for the device, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.words * 4) }
    }

    /// Where the device finds it.
    pub(crate) fn device_address(&self) -> Result<u64> {
        let mut at = 0;
        call!(cuMemHostGetDevicePointer_v2(&raw mut at, self.at, 0))?;
        Ok(at)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.context.bind();
        let _ = call!(cuMemFreeHost(self.at));
    }
}

/// Kernels of one image.
#[derive(Debug)]
pub(crate) struct Module {
    context: Arc<Context>,
    module: sys::CUmodule,
}

// SAFETY: modules belong to a context and may be used from every thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// From a cubin, or from PTX that ends in a zero.
    pub(crate) fn new(context: &Arc<Context>, image: &[u8]) -> Result<Self> {
        context.bind()?;
        let mut module = std::ptr::null_mut();
        call!(cuModuleLoadData(&raw mut module, image.as_ptr().cast()))?;
        Ok(Module {
            context: Arc::clone(context),
            module,
        })
    }

    pub(crate) fn function(&self, name: &str) -> Result<Function> {
        let name = CString::new(name).expect("names of kernels have no zeros");
        let mut function = std::ptr::null_mut();
        call!(cuModuleGetFunction(
            &raw mut function,
            self.module,
            name.as_ptr()
        ))?;
        Ok(Function(function))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _ = self.context.bind();
        let _ = call!(cuModuleUnload(self.module));
    }
}

/// A kernel; its module must live.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function(sys::CUfunction);

// SAFETY: a handle like its module's.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// Lets a launch ask for more shared memory than every device has.
    pub(crate) fn allow_shared(self, bytes: u32) -> Result<()> {
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        call!(cuFuncSetAttribute(self.0, attribute, bytes as i32))
    }

    /// As much of the first cache as can be is shared memory, so that blocks of several launches have room beside each other.
    pub(crate) fn prefer_shared(self) -> Result<()> {
        let attribute =
            sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        call!(cuFuncSetAttribute(self.0, attribute, 100))
    }
}

/// How a kernel is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// After everything before it.
    Plain,
    /// Before the kernel in front of it ends: it waits itself for what that one writes.
    Early,
    /// With all blocks on the device at once: they may wait for each other. The kernel has two parameters, the first of so many
    /// bytes.
    Together(usize),
}

/// A queue of the device's.
#[derive(Debug)]
pub(crate) struct Stream {
    context: Arc<Context>,
    stream: sys::CUstream,
}

// SAFETY: streams may be used from every thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        context.bind()?;
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        call!(cuStreamCreate(&raw mut stream, flags))?;
        Ok(Stream {
            context: Arc::clone(context),
            stream,
        })
    }

    /// Launches a kernel whose parameters lie in `params` as in C.
    pub(crate) fn launch(
        &self,
        function: Function,
        grid: [u32; 3],
        shape: (u32, u32),
        params: &[u8],
    ) -> Result<()> {
        self.launch_as(Mode::Plain, function, grid, shape, params)
    }

    /// As [`Stream::launch`], in a way that not every kernel is made for.
    pub(crate) fn launch_as(
        &self,
        mode: Mode,
        function: Function,
        grid: [u32; 3],
        (block, shared): (u32, u32),
        params: &[u8],
    ) -> Result<()> {
        let mut size = params.len();
        // The names of the entries are pointers to 1, 2 and 0 in the driver's header.
        let mut extra: [*mut c_void; 5] = [
            std::ptr::without_provenance_mut(1),
            params.as_ptr().cast_mut().cast(),
            std::ptr::without_provenance_mut(2),
            (&raw mut size).cast(),
            std::ptr::null_mut(),
        ];
        let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
        let id = match mode {
            Mode::Plain => sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_IGNORE,
            Mode::Early => {
                value.programmaticStreamSerializationAllowed = 1;
                sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            }
            Mode::Together(_) => {
                value.cooperative = 1;
                sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            }
        };
        let mut attribute = sys::CUlaunchAttribute {
            id,
            pad: [0; 4],
            value,
        };
        let config = sys::CUlaunchConfig {
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared,
            hStream: self.stream,
            attrs: &raw mut attribute,
            numAttrs: u32::from(mode != Mode::Plain),
        };
        // Launches of blocks that wait for each other take no buffer of parameters.
        let mut places: [*mut c_void; 2];
        let (places, extra) = match mode {
            Mode::Together(first) => {
                places = [0, first].map(|at| params[at..].as_ptr().cast_mut().cast());
                (places.as_mut_ptr(), std::ptr::null_mut())
            }
            _ => (std::ptr::null_mut(), extra.as_mut_ptr()),
        };
        call!(cuLaunchKernelEx(
            &raw const config,
            function.0,
            places,
            extra
        ))
    }

    /// Copies from pinned memory, which must stay as it is until that is done.
    pub(crate) fn upload(&self, from: &Pinned, bytes: usize, to: u64) -> Result<()> {
        assert!(bytes <= from.words * 4, "bytes of the memory");
        call!(cuMemcpyHtoDAsync_v2(to, from.at, bytes, self.stream))
    }

    pub(crate) fn copy(&self, from: u64, to: u64, bytes: u64) -> Result<()> {
        call!(cuMemcpyDtoDAsync_v2(to, from, bytes as usize, self.stream))
    }

    /// What comes next waits for an event of any stream.
    pub(crate) fn wait_for(&self, event: &Event) -> Result<()> {
        call!(cuStreamWaitEvent(self.stream, event.event, 0))
    }

    /// Whether everything is done; an error when something went wrong.
    pub(crate) fn is_idle(&self) -> Result<bool> {
        // SAFETY: the stream is alive.
        let code = unsafe { sys::cuStreamQuery(self.stream) };
        if code == sys::CUresult::CUDA_ERROR_NOT_READY {
            return Ok(false);
        }
        check("cuStreamQuery", code).map(|()| true)
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        call!(cuStreamSynchronize(self.stream))
    }

    pub(crate) fn record(&self, event: &Event) -> Result<()> {
        call!(cuEventRecord(event.event, self.stream))
    }

    /// As [`Stream::record`], each time a capture is replayed too.
    pub(crate) fn record_replayed(&self, event: &Event, captured: bool) -> Result<()> {
        let flags = match captured {
            true => sys::CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL as u32,
            false => 0,
        };
        call!(cuEventRecordWithFlags(event.event, self.stream, flags))
    }

    /// What `launches` asks of this stream, to be replayed.
    pub(crate) fn capture(&self, launches: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        call!(cuStreamBeginCapture_v2(self.stream, mode))?;
        let launched = launches();
        let mut graph = std::ptr::null_mut();
        let captured = call!(cuStreamEndCapture(self.stream, &raw mut graph));
        // What a launch said tells more than that the capture failed.
        launched.clone().and(captured)?;
        let mut exec = std::ptr::null_mut();
        let made =
            launched.and_then(|()| call!(cuGraphInstantiateWithFlags(&raw mut exec, graph, 0)));
        call!(cuGraphDestroy(graph))?;
        made.map(|()| Graph {
            context: Arc::clone(&self.context),
            exec,
        })
    }

    pub(crate) fn replay(&self, graph: &Graph) -> Result<()> {
        call!(cuGraphLaunch(graph.exec, self.stream))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.context.bind();
        let _ = call!(cuStreamSynchronize(self.stream));
        let _ = call!(cuStreamDestroy_v2(self.stream));
    }
}

/// Launches that are replayed together.
#[derive(Debug)]
pub(crate) struct Graph {
    context: Arc<Context>,
    exec: sys::CUgraphExec,
}

// SAFETY: it is launched by its owner alone.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = self.context.bind();
        let _ = call!(cuGraphExecDestroy(self.exec));
    }
}

/// A place in a stream.
#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    event: sys::CUevent,
}

// SAFETY: events may be used from every thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        context.bind()?;
        let mut event = std::ptr::null_mut();
        call!(cuEventCreate(&raw mut event, 0))?;
        Ok(Event {
            context: Arc::clone(context),
            event,
        })
    }

    /// Whether it has passed, or was never recorded.
    pub(crate) fn is_done(&self) -> Result<bool> {
        // SAFETY: the event is alive.
        let code = unsafe { sys::cuEventQuery(self.event) };
        if code == sys::CUresult::CUDA_ERROR_NOT_READY {
            return Ok(false);
        }
        check("cuEventQuery", code).map(|()| true)
    }

    /// Nanoseconds of the device from another event to this one; both have passed.
    pub(crate) fn since(&self, before: &Event) -> Result<u64> {
        let mut ms = 0.0f32;
        call!(cuEventElapsedTime(&raw mut ms, before.event, self.event))?;
        Ok((f64::from(ms) * 1e6) as u64)
    }

    /// Waits until it has passed; at once where it was never recorded.
    pub(crate) fn wait(&self) -> Result<()> {
        call!(cuEventSynchronize(self.event))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.context.bind();
        let _ = call!(cuEventDestroy_v2(self.event));
    }
}
