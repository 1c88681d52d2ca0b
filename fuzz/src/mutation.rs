//! Damage.

use super::dice::Dice;

const WORDS: [&str; 30] = [
    "\"",
    "\\",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "NaN",
    "-Infinity",
    "Infinity",
    "\"nan\"",
    "\" -inf \"",
    "1e999",
    "1e+400",
    "null",
    "true",
    "\\u0022",
    "\\\\",
    "\n",
    "\t",
    " ",
    "\u{feff}",
    "é",
    "\"Max\"",
    "\"data\"",
    "\"output\"",
    "{\"a\":",
    "[[[[[[[[",
    "-",
];

/// Text with some bytes changed, left out, doubled or put in.
#[must_use]
pub fn mutated(mut text: Vec<u8>, dice: &mut Dice) -> Vec<u8> {
    for _ in 0..=dice.roll(6) {
        if text.is_empty() {
            return text;
        }
        let at = dice.roll(text.len() as u64) as usize;
        let run = at..text.len().min(at + 1 + dice.roll(40) as usize);
        match dice.roll(7) {
            0 => text[at] = dice.roll(256) as u8,
            1 => text[at] ^= 1 << dice.roll(8),
            2 => drop(text.drain(run)),
            3 => {
                let copy = text[run].to_vec();
                let to = dice.roll(text.len() as u64 + 1) as usize;
                text.splice(to..to, copy);
            }
            4 => text.truncate(at),
            _ => {
                let word = WORDS[dice.roll(WORDS.len() as u64) as usize].bytes();
                text.splice(at..at, word);
            }
        }
    }
    text
}
