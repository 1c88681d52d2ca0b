//! The name of an op, and what it is looked up by.

use crate::op::OpName;

/// A call by its name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call<'n> {
    pub(super) name: OpName<'n>,
    /// What the forward and the backward calls of one function or module share.
    pub(super) base_key: u64,
}

impl<'n> Call<'n> {
    pub(super) fn of(name: &'n str) -> Self {
        let name = OpName::parse(name);
        Self { name, base_key: xxhash_rust::xxh3::xxh3_64(name.base.as_bytes()) }
    }

    /// The same call the `number`th time.
    pub(super) fn numbered(self, number: u64) -> Self {
        Self { name: OpName { call_index: Some(number), ..self.name }, ..self }
    }

    /// What a forward call and its backward share.
    pub(super) fn key(&self) -> u64 {
        let number = self.name.call_index.unwrap_or(u64::MAX);
        self.base_key ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// What the table's rows are looked up by.
pub(super) fn api_key(name: &OpName) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(name.api.as_bytes(), xxhash_rust::xxh3::xxh3_64(name.prefix.as_bytes()))
}
