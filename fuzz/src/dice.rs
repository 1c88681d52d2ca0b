//! Choices out of a fuzzer's bytes.

/// Deals the bytes out; when they are used up, goes on from what they came to.
#[derive(Debug)]
pub struct Dice<'a> {
    bytes: &'a [u8],
    state: u64,
}

impl<'a> Dice<'a> {
    /// A dice that falls as `bytes` say.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        let mix = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3);
        Self { bytes, state: bytes.iter().take(64).fold(0xcbf2_9ce4_8422_2325, mix) }
    }

    /// A number below `sides` (which is not 0).
    pub fn roll(&mut self, sides: u64) -> u64 {
        let value = if let [first, rest @ ..] = self.bytes {
            self.bytes = rest;
            let low = u64::from(*first);
            if sides <= 256 {
                low
            } else {
                self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                low ^ (self.state >> 33)
            }
        } else {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.state >> 33
        };
        value % sides
    }

    /// One of several.
    pub fn pick<'p, T: ?Sized>(&mut self, choices: &[&'p T]) -> &'p T {
        choices[self.roll(choices.len() as u64) as usize]
    }
}
