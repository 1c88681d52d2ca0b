//! Core.
mod error; mod op; mod source; mod token; mod scan; mod parse;
pub use error::*; pub use op::*; pub use source::*; pub use scan::*;
