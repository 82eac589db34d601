//! The peers that are Rust libraries: tests/peers, a shared object that `cargo ci bench` builds and names in
//! the environment. They hit in this process, in the same rounds.

use crate::floor::Handler;
use crate::victims::Victim;

/// Another library's probe on one of the victims; gone when dropped.
pub(crate) struct Peer {
    hits: extern "C" fn() -> u64,
    remove: extern "C" fn(),
    /// The handler that SIGTRAP has to have while it is hit.
    pub(crate) on_trap: Option<Handler>,
}

impl Peer {
    /// Puts the probe of the peer of that name on `victim`.
    ///
    /// # Errors
    /// A sentence: it is not there, or does not want to.
    pub(crate) fn plant(name: &str, victim: Victim) -> Result<Self, String> {
        let function = |what: &str| symbol(&format!("peer_{name}_{what}"));
        let (plant, hits, remove) = (function("plant")?, function("hits")?, function("remove")?);
        // SAFETY: tests/peers defines it so.
        let plant: unsafe extern "C" fn(usize) -> i32 = unsafe { std::mem::transmute(plant) };
        // SAFETY: as above.
        let hits = unsafe { std::mem::transmute::<usize, extern "C" fn() -> u64>(hits) };
        // SAFETY: as above.
        let remove = unsafe { std::mem::transmute::<usize, extern "C" fn()>(remove) };
        // SAFETY: as above; a peer that needs no signal has none.
        let on_trap = function("on_trap").ok().map(|at| unsafe { std::mem::transmute::<usize, Handler>(at) });
        // SAFETY: a victim is straight code of 14 bytes at least, its padding included, and this is the only
        // thread that runs.
        match unsafe { plant(victim as *const () as usize) } {
            0 => Ok(Self { hits, remove, on_trap }),
            _ => Err("it refuses the function".to_owned()),
        }
    }

    /// How often it was hit.
    pub(crate) fn count(&self) -> u64 {
        (self.hits)()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        (self.remove)();
    }
}

/// The address of a function of tests/peers.
#[cfg(target_env = "gnu")]
fn symbol(name: &str) -> Result<usize, String> {
    use std::ffi::CString;
    let Some(path) = std::env::var_os("PROBE_PEERS") else {
        return Err("PROBE_PEERS names no library: cargo ci bench builds it".to_owned());
    };
    let path = CString::new(path.into_encoded_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: `path` is a C string; the library starts nothing by being loaded. It is never unloaded.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return Err(format!("{} cannot be loaded", path.to_string_lossy()));
    }
    let name = CString::new(name).map_err(|error| error.to_string())?;
    // SAFETY: both live.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) } as usize;
    if address == 0 { Err("not for this architecture".to_owned()) } else { Ok(address) }
}

/// A static program loads nothing.
#[cfg(not(target_env = "gnu"))]
fn symbol(_name: &str) -> Result<usize, String> {
    Err("a static program loads no library".to_owned())
}
