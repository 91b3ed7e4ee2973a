//! Misuse: a command line that a command cannot accept. One line that says what to do, exit status 2.

use clap::builder::StyledStr;
use clap::error::ErrorKind;

/// An error in the command line.
#[derive(Debug)]
pub(crate) struct Misuse(pub String);

impl std::fmt::Display for Misuse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Misuse {}

impl Misuse {
    /// Wraps a sentence.
    pub(crate) fn because(message: impl std::fmt::Display) -> anyhow::Error {
        anyhow::Error::new(Misuse(message.to_string()))
    }
}

/// Returns a [`Misuse`] from the function.
macro_rules! misuse {
    ($($text:tt)*) => { return Err($crate::misuse::Misuse::because(format_args!($($text)*))) };
}
pub(crate) use misuse;

/// Ends a command whose arguments do not parse, or prints the help that they ask for.
pub(crate) fn end(error: &clap::Error, usage: &StyledStr) -> ! {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => error.exit(),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            eprintln!("{}", error.render().to_string().trim_end());
        }
        _ => eprintln!("{}", line(&error.render().to_string(), &usage.to_string())),
    }
    std::process::exit(2)
}

/// The complaint and the usage in one line, without the boilerplate.
fn line(complaint: &str, usage: &str) -> String {
    let said = complaint
        .lines()
        .take_while(|line| !line.starts_with("Usage:"))
        .filter(|line| !line.starts_with("For more information"));
    let mut text = String::new();
    for part in said.map(str::trim).filter(|part| !part.is_empty()) {
        if part.starts_with("tip:") {
            text.push(';');
        }
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(part);
    }
    let usage: Vec<&str> = usage.split_whitespace().collect();
    let name = usage.iter().skip(1).take_while(|word| !word.starts_with(['[', '<', '-']));
    let name: Vec<&str> = name.copied().collect();
    let text = text.trim_end_matches('.');
    format!("{text}. {}; see: {} --help", usage.join(" "), name.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_is_one_line() {
        let complaint = "error: unexpected argument '--x' found\n\n  tip: a similar argument exists: '--y'\n\n\
                         Usage: adamant up --y\n\nFor more information, try '--help'.\n";
        assert_eq!(
            line(complaint, "Usage: adamant up [OPTIONS]"),
            "error: unexpected argument '--x' found; tip: a similar argument exists: '--y'. \
             Usage: adamant up [OPTIONS]; see: adamant up --help"
        );
    }
}
