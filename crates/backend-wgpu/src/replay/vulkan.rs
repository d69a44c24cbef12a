//! Replays through Vulkan: secondary command buffers, which wgpu's own submissions execute.
//!
//! Kernels are the text that wgpu is given and the pipelines made of it here, since wgpu tells of its own no handles. wgpu does not see
//! what is replayed: everything before is waited for in front of it, and it is waited for by everything behind it. What it uses is
//! held until it is done by whoever submitted it, as everything else that a submission reads.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ash::vk;
use tokkata_ir::BackendError;
use wgpu::hal::vulkan::Api;

use super::{Buffers, Call, Piece};
use crate::error::lost;
use crate::gpu::{Gpu, STORAGES};
use crate::params::PARAM_BYTES;
use crate::preprocess::Constants;
use crate::spirv::translated;

/// Pipelines by source, entry point and constants.
type Pipelines = BTreeMap<(&'static str, &'static str, Constants), vk::Pipeline>;

/// What everything that was made here needs until it is gone.
struct Inner {
    device: ash::Device,
    bindings: vk::DescriptorSetLayout,
    layout: vk::PipelineLayout,
    commands: Mutex<vk::CommandPool>,
    pipelines: Mutex<Pipelines>,
    gpu: Arc<Gpu>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(what: &str) -> impl Fn(vk::Result) -> BackendError + '_ {
    move |why| lost(format!("{what}: {why}"))
}

/// A kernel as Vulkan has it, which lives as long as its [`Replay`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prepared(vk::Pipeline);

/// Buffers that kernels see together.
pub(crate) struct Set {
    inner: Arc<Inner>,
    pool: vk::DescriptorPool,
    raw: vk::DescriptorSet,
    _buffers: Buffers,
}

/// Dispatches that were recorded.
pub(crate) struct Recorded {
    inner: Arc<Inner>,
    raw: vk::CommandBuffer,
    _sets: Vec<Arc<Set>>,
}

/// Makes what is replayed on a device.
pub(crate) struct Replay {
    inner: Arc<Inner>,
}

impl Replay {
    /// `None` where it is not Vulkan that drives the device, or it does not give what is needed.
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Option<Self> {
        // SAFETY: the handles are used while `gpu`, which is held, keeps the device.
        let (device, family) = unsafe {
            let hal = gpu.device.as_hal::<Api>()?;
            (hal.raw_device().clone(), hal.queue_family_index())
        };
        let made = Inner::new(device, family, Arc::clone(gpu)).ok()?;
        Some(Replay {
            inner: Arc::new(made),
        })
    }

    /// A kernel, made ready once.
    pub(crate) fn prepare(
        &self,
        (file, entry): (&'static str, &'static str),
        constants: &Constants,
    ) -> Result<Prepared, BackendError> {
        let mut pipelines = locked(&self.inner.pipelines);
        let key = (file, entry, constants.clone());
        if let Some(&found) = pipelines.get(&key) {
            return Ok(Prepared(found));
        }
        let text = self.inner.gpu.text(file, constants);
        let words = translated(&text, entry).map_err(|why| lost(format!("{file}: {why}")))?;
        let made = self.inner.pipeline(&words, entry);
        let made = made.map_err(failed("a kernel that is replayed"))?;
        pipelines.insert(key, made);
        Ok(Prepared(made))
    }

    /// Buffers as kernels see them.
    pub(crate) fn set(&self, buffers: Buffers) -> Result<Set, BackendError> {
        let made = self.inner.set(&buffers);
        let (pool, raw) = made.map_err(failed("buffers that are replayed"))?;
        Ok(Set {
            inner: Arc::clone(&self.inner),
            pool,
            raw,
            _buffers: buffers,
        })
    }

    /// Records dispatches in their order.
    pub(crate) fn record(&self, calls: &[Call]) -> Result<Recorded, BackendError> {
        let raw = self.inner.record(calls);
        Ok(Recorded {
            inner: Arc::clone(&self.inner),
            raw: raw.map_err(failed("a step that is replayed"))?,
            _sets: calls.iter().map(|c| Arc::clone(&c.set)).collect(),
        })
    }

    /// Makes `encoder`, in which nothing else is recorded, run these.
    pub(crate) fn encode<'a>(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        pieces: impl Iterator<Item = &'a Piece>,
    ) {
        // SAFETY: the command buffer is wgpu's and being recorded; what is recorded in it outlives its submission.
        unsafe {
            encoder.as_hal_mut::<Api, _, _>(|hal| {
                if let Some(hal) = hal {
                    self.inner.encode(hal.raw_handle(), pieces);
                }
            });
        }
    }
}

/// Writes of kernels before are seen by kernels behind.
const BETWEEN: (vk::PipelineStageFlags, vk::AccessFlags) = (
    vk::PipelineStageFlags::COMPUTE_SHADER,
    vk::AccessFlags::SHADER_WRITE,
);

/// What kernels read and write.
const ACCESS: vk::AccessFlags = vk::AccessFlags::from_raw(
    vk::AccessFlags::SHADER_READ.as_raw()
        | vk::AccessFlags::SHADER_WRITE.as_raw()
        | vk::AccessFlags::UNIFORM_READ.as_raw(),
);

/// Everything that reads or writes.
const ALL: vk::AccessFlags = vk::AccessFlags::from_raw(
    vk::AccessFlags::MEMORY_READ.as_raw() | vk::AccessFlags::MEMORY_WRITE.as_raw(),
);

/// Bindings: parameters at a dynamic offset, storage, where parts of the state begin.
fn binding_type(i: u32) -> vk::DescriptorType {
    match i {
        0 => vk::DescriptorType::UNIFORM_BUFFER_DYNAMIC,
        i if i <= STORAGES => vk::DescriptorType::STORAGE_BUFFER,
        _ => vk::DescriptorType::UNIFORM_BUFFER,
    }
}

/// All calls here are given handles of `device` that this module made, or that wgpu's objects hold, and are in order.
impl Inner {
    fn new(device: ash::Device, family: u32, gpu: Arc<Gpu>) -> Result<Self, vk::Result> {
        let binding = |i| {
            vk::DescriptorSetLayoutBinding::default()
                .binding(i)
                .descriptor_type(binding_type(i))
                .descriptor_count(1)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
        };
        let all: Vec<_> = (0..STORAGES + 2).map(binding).collect();
        let bindings = vk::DescriptorSetLayoutCreateInfo::default().bindings(&all);
        let pool = vk::CommandPoolCreateInfo::default().queue_family_index(family);
        // SAFETY: the device is there, and descriptions are whole.
        unsafe {
            let bindings = device.create_descriptor_set_layout(&bindings, None)?;
            let sets = [bindings];
            let layout = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets);
            Ok(Inner {
                layout: device.create_pipeline_layout(&layout, None)?,
                commands: Mutex::new(device.create_command_pool(&pool, None)?),
                device,
                bindings,
                pipelines: Mutex::default(),
                gpu,
            })
        }
    }

    fn pipeline(&self, words: &[u32], entry: &str) -> Result<vk::Pipeline, vk::Result> {
        let name = CString::new(entry).expect("names of kernels have no zeros");
        let source = vk::ShaderModuleCreateInfo::default().code(words);
        // SAFETY: naga made the words of a valid module, whose bindings are those of the layout.
        unsafe {
            let module = self.device.create_shader_module(&source, None)?;
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(&name);
            let wanted = vk::ComputePipelineCreateInfo::default()
                .stage(stage)
                .layout(self.layout);
            let none = vk::PipelineCache::null();
            let made = self.device.create_compute_pipelines(none, &[wanted], None);
            self.device.destroy_shader_module(module, None);
            made.map(|all| all[0]).map_err(|(_, why)| why)
        }
    }

    fn set(
        &self,
        buffers: &Buffers,
    ) -> Result<(vk::DescriptorPool, vk::DescriptorSet), vk::Result> {
        let size = |ty: vk::DescriptorType, n| {
            vk::DescriptorPoolSize::default().ty(ty).descriptor_count(n)
        };
        let sizes = [
            size(vk::DescriptorType::UNIFORM_BUFFER_DYNAMIC, 1),
            size(vk::DescriptorType::STORAGE_BUFFER, STORAGES),
            size(vk::DescriptorType::UNIFORM_BUFFER, 1),
        ];
        let pool = vk::DescriptorPoolCreateInfo::default()
            .max_sets(1)
            .pool_sizes(&sizes);
        // SAFETY: buffers are wgpu's and held by the set; the set is new, so that nothing reads it while it is written.
        unsafe {
            let pool = self.device.create_descriptor_pool(&pool, None)?;
            let layouts = [self.bindings];
            let wanted = vk::DescriptorSetAllocateInfo::default()
                .descriptor_pool(pool)
                .set_layouts(&layouts);
            let made = self.device.allocate_descriptor_sets(&wanted);
            let set = match made {
                Ok(sets) => sets[0],
                Err(why) => {
                    self.device.destroy_descriptor_pool(pool, None);
                    return Err(why);
                }
            };
            for (i, buffer) in (0..).zip(buffers) {
                let raw = buffer.as_hal::<Api>().map(|b| b.raw_handle());
                let info = [vk::DescriptorBufferInfo::default()
                    .buffer(raw.unwrap_or_default())
                    .range(if i == 0 {
                        PARAM_BYTES as u64
                    } else {
                        vk::WHOLE_SIZE
                    })];
                let write = vk::WriteDescriptorSet::default()
                    .dst_set(set)
                    .dst_binding(i)
                    .descriptor_type(binding_type(i))
                    .buffer_info(&info);
                self.device.update_descriptor_sets(&[write], &[]);
            }
            Ok((pool, set))
        }
    }

    fn record(&self, calls: &[Call]) -> Result<vk::CommandBuffer, vk::Result> {
        let pool = locked(&self.commands);
        let wanted = vk::CommandBufferAllocateInfo::default()
            .command_pool(*pool)
            .level(vk::CommandBufferLevel::SECONDARY)
            .command_buffer_count(1);
        let inherited = vk::CommandBufferInheritanceInfo::default();
        let begin = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::SIMULTANEOUS_USE)
            .inheritance_info(&inherited);
        // SAFETY: nobody else records from the pool, which is locked, and the buffer is new.
        unsafe {
            let buffer = self.device.allocate_command_buffers(&wanted)?[0];
            let recorded = self.device.begin_command_buffer(buffer, &begin);
            let recorded = recorded.and_then(|()| {
                for call in calls {
                    self.call(buffer, call);
                }
                self.device.end_command_buffer(buffer)
            });
            if let Err(why) = recorded {
                self.device.free_command_buffers(*pool, &[buffer]);
                return Err(why);
            }
            Ok(buffer)
        }
    }

    /// A dispatch, behind what came before it.
    ///
    /// # Safety
    /// The buffer is being recorded.
    unsafe fn call(&self, buffer: vk::CommandBuffer, call: &Call) {
        let [x, y, z] = call.grid;
        let compute = vk::PipelineBindPoint::COMPUTE;
        // SAFETY: the buffer is being recorded; kernel and set are of this device.
        unsafe {
            if !call.beside {
                self.wait(
                    buffer,
                    BETWEEN,
                    (vk::PipelineStageFlags::COMPUTE_SHADER, ACCESS),
                );
            }
            self.device
                .cmd_bind_pipeline(buffer, compute, call.kernel.0);
            let (sets, offsets) = ([call.set.raw], [call.params]);
            self.device
                .cmd_bind_descriptor_sets(buffer, compute, self.layout, 0, &sets, &offsets);
            self.device.cmd_dispatch(buffer, x, y, z);
        }
    }

    /// # Safety
    /// The buffer is being recorded.
    unsafe fn wait(
        &self,
        buffer: vk::CommandBuffer,
        (from, written): (vk::PipelineStageFlags, vk::AccessFlags),
        (to, seen): (vk::PipelineStageFlags, vk::AccessFlags),
    ) {
        let barriers = [vk::MemoryBarrier::default()
            .src_access_mask(written)
            .dst_access_mask(seen)];
        let flags = vk::DependencyFlags::empty();
        // SAFETY: the buffer is being recorded.
        unsafe {
            self.device
                .cmd_pipeline_barrier(buffer, from, to, flags, &barriers, &[], &[]);
        }
    }

    /// # Safety
    /// The buffer is a primary one that is being recorded.
    unsafe fn encode<'a>(
        &self,
        buffer: vk::CommandBuffer,
        pieces: impl Iterator<Item = &'a Piece>,
    ) {
        let everything = vk::PipelineStageFlags::ALL_COMMANDS;
        let kernels = (vk::PipelineStageFlags::COMPUTE_SHADER, ACCESS);
        // SAFETY: as asked for; what was recorded may be executed any number of times.
        unsafe {
            self.wait(buffer, (everything, vk::AccessFlags::MEMORY_WRITE), kernels);
            for piece in pieces {
                match piece {
                    Piece::Call(call) => self.call(buffer, call),
                    Piece::Recorded(recorded) => {
                        self.device.cmd_execute_commands(buffer, &[recorded.raw]);
                    }
                }
            }
            self.wait(buffer, BETWEEN, (everything, ALL));
        }
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        // SAFETY: whoever submits holds the set until its submission is done.
        unsafe { self.inner.device.destroy_descriptor_pool(self.pool, None) };
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let pool = locked(&self.inner.commands);
        // SAFETY: as for a set; nobody else uses the pool, which is locked.
        unsafe { self.inner.device.free_command_buffers(*pool, &[self.raw]) };
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: everything that was made of these is gone, and `gpu` still keeps the device.
        unsafe {
            for &pipeline in locked(&self.pipelines).values() {
                self.device.destroy_pipeline(pipeline, None);
            }
            self.device
                .destroy_command_pool(*locked(&self.commands), None);
            self.device.destroy_pipeline_layout(self.layout, None);
            self.device
                .destroy_descriptor_set_layout(self.bindings, None);
        }
    }
}
