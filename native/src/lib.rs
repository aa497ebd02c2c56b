//! Native twins of hot paths of the broker: see `docs/adr/0036-a-native-part.md` of the project.

mod acks;
mod batch;
mod block_lane;
mod frame;
mod guard;
mod lane;
mod memory;
mod ring;
mod wal_block;

/// Names and meanings of what Python uses. `src/anabranch/native.py` has the number that it expects.
const API: u32 = 5;

#[pyo3::pymodule(gil_used = true)]
mod anabranch_native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::block_lane::BlockLane;
    #[pymodule_export]
    use super::lane::ProduceLane;
    #[pymodule_export]
    use super::ring::Queues;
    #[pymodule_export]
    use super::wal_block::WalBlock;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("API", super::API)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
