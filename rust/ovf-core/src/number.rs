//! A number that may be non-finite, in strict JSON: a number, or one of `"NaN"`, `"Infinity"`, `"-Infinity"`.
//!
//! For what leaves as JSON (serde's `serialize_with`); what is stored keeps the number itself.

use serde::Serializer;

/// The word for a non-finite number; `None` for finite ones.
pub(crate) fn word(number: f64) -> Option<&'static str> {
    if number.is_nan() {
        Some("NaN")
    } else if number.is_infinite() {
        Some(if number > 0.0 { "Infinity" } else { "-Infinity" })
    } else {
        None
    }
}

/// The number a word stands for.
pub(crate) fn of_word(word: &str) -> Option<f64> {
    match word {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

#[allow(clippy::ref_option)] // serde's signature
pub(crate) fn serialize<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        None => serializer.serialize_none(),
        Some(n) => match word(*n) {
            Some(text) => serializer.serialize_str(text),
            None => serializer.serialize_f64(*n),
        },
    }
}
