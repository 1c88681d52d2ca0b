//! A rank's execution drawn small: the worst state in each of a few equal parts of its ops.
//!
//! In: the state of every op. Out: one letter a cell, at most [`CELLS`] of them, whatever the number of ops. For a map
//! on a terminal and for the slices of a trace; exact where a rank has no more ops than cells.

use crate::classify::OpState;

/// Cells of a rank.
pub(crate) const CELLS: usize = 256;

/// Letter of a state: `o`rigin, `p`ropagated, `a`bsorbed, `i`ntended, `g`arbage (ignored), `u`nknown, `.` clean.
fn letter(state: OpState) -> char {
    match state {
        OpState::Origin => 'o',
        OpState::Propagated => 'p',
        OpState::Absorbed => 'a',
        OpState::Intended => 'i',
        OpState::Ignored => 'g',
        OpState::Unknown => 'u',
        OpState::Clean => '.',
    }
}

/// How much a state matters on a map.
fn weight(state: OpState) -> u8 {
    match state {
        OpState::Origin => 6,
        OpState::Propagated => 5,
        OpState::Absorbed => 4,
        OpState::Intended => 3,
        OpState::Ignored => 2,
        OpState::Unknown => 1,
        OpState::Clean => 0,
    }
}

/// The strip of a rank: cell `c` of `n` covers the ops from `c * ops / n` up to the next cell's first.
pub(crate) fn strip(states: &[OpState]) -> String {
    let cells = states.len().min(CELLS);
    let start = |c: usize| c * states.len() / cells;
    let worst = |c: usize| states[start(c)..start(c + 1)].iter().copied().max_by_key(|s| weight(*s));
    (0..cells).filter_map(worst).map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_state_of_each_cell() {
        assert_eq!(strip(&[]), "");
        assert_eq!(strip(&[OpState::Clean, OpState::Origin, OpState::Unknown]), ".ou");
        let mut states = vec![OpState::Clean; 10 * CELLS + 3];
        states[25] = OpState::Intended;
        states[29] = OpState::Origin;
        let last = states.len() - 1;
        states[last] = OpState::Propagated;
        let drawn = strip(&states);
        assert_eq!(drawn.len(), CELLS);
        assert_eq!((drawn.find('o'), drawn.find('p'), drawn.find('i')), (Some(2), Some(CELLS - 1), None));
    }
}
