//! Texts that are compared with a file of this repository.

/// Compares a text with the file at `path`, which had `golden` in it when the test was built. With `BLESS` set when it is built,
/// it writes the file instead.
///
/// # Panics
/// They differ, or the file cannot be written.
#[track_caller]
pub fn is_same(text: &str, golden: &str, path: &str) {
    if option_env!("BLESS").is_some() {
        std::fs::write(path, text).unwrap();
    } else if text != golden {
        let apart = text.lines().zip(golden.lines()).find(|(now, before)| now != before);
        panic!(
            "'{path}' has another text; built with BLESS=1, this test writes it. The first line that differs: {apart:#?}"
        );
    }
}
