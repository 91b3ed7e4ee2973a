//! The report: one HTML page with all charts and tables of a directory, which loads nothing else.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::chart;
use crate::machine::date;
use crate::results::Results;

/// The name of the page in its directory.
pub const PAGE: &str = "report.html";
/// The suites in the order of the page.
const SUITES: [&str; 8] = ["ceiling", "native", "smallfile", "meta", "mdts", "slots", "recovery", "millions"];

const STYLE: &str = "
:root { --ink: #1d2126; --soft: #59636e; --line: #d5dae0; --back: #f4f6f8; --card: #ffffff; --warn: #8a3b00; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 28px; margin: 0 0 4px; } h2 { font-size: 22px; margin: 44px 0 4px; } h3 { font-size: 16px; margin: 20px 0 6px; }
p { margin: 4px 0 10px; max-width: 78ch; } .soft { color: var(--soft); } .warn { color: var(--warn); font-weight: 600; }
nav a { margin-right: 16px; } a { color: #005a9c; }
code { font: 14px/1.4 ui-monospace, monospace; background: #e8ecf0; padding: 1px 5px; border-radius: 4px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 18px; margin: 12px 0; } dt { color: var(--soft); } dd { margin: 0; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(520px, 100%), 1fr)); gap: 14px; margin: 14px 0; }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 6px; }
figure svg { display: block; width: 100%; height: auto; }
.table { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 9px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-size: 12px; background: #fafbfc; white-space: normal; vertical-align: bottom; } th:first-child, td:first-child { text-align: left; }
tr:last-child td { border-bottom: 0; }
@media print { body { background: #fff; } figure { break-inside: avoid; } }
";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The page for some results.
///
/// # Errors
/// A chart cannot be drawn.
pub fn page(all: &[Results]) -> anyhow::Result<String> {
    let mut out = String::new();
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Adamant: benchmarks</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>Adamant: benchmarks</h1>\n\
         <p class=\"soft\">Each figure stands beside its yardsticks, measured in the same run on the same machine: \
         compare the ratios, not the figures.</p>\n<nav>"
    );
    for results in all {
        let name = escape(&results.suite);
        let _ = write!(out, "<a href=\"#{name}\">{name}</a>");
    }
    out.push_str("</nav>\n");
    for results in all {
        section(&mut out, results)?;
    }
    out.push_str("</main>\n</body>\n</html>\n");
    Ok(out)
}

fn section(out: &mut String, results: &Results) -> anyhow::Result<()> {
    let name = escape(&results.suite);
    let _ = write!(out, "<section>\n<h2 id=\"{name}\">{name}</h2>\n<p>{}</p>\n", escape(&results.about));
    if let Some(why) = &results.ended_early {
        let _ = writeln!(out, "<p class=\"warn\">Ended early: {}. The figures are those until then.</p>", escape(why));
    }
    let machine = &results.machine;
    let facts = [
        ("machine", format!("{} × {}, {} MiB of memory", machine.processors, machine.processor, machine.memory_mib)),
        ("kernel", machine.kernel.clone()),
        (
            "version",
            format!(
                "Adamant {}{}",
                machine.adamant,
                if machine.optimised { "" } else { ", built without optimisation" }
            ),
        ),
        (
            "measured",
            format!("{} UTC, in {:.0} s; load before: {:.2}", date(machine.when), results.seconds, machine.load),
        ),
    ];
    out.push_str("<dl>");
    for (term, text) in facts {
        let _ = write!(out, "<dt>{term}</dt><dd>{}</dd>", escape(&text));
    }
    let _ = writeln!(out, "<dt>command</dt><dd><code>{}</code></dd></dl>", escape(&results.command));
    if !results.charts.is_empty() {
        out.push_str("<div class=\"charts\">\n");
        for chart in &results.charts {
            let _ = writeln!(out, "<figure>{}</figure>", chart::draw(chart)?);
        }
        out.push_str("</div>\n");
    }
    let (head, rows) = results.cells();
    if !rows.is_empty() {
        let row = |cells: &[String], tag: &str| -> String {
            let cells = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell)));
            format!("<tr>{}</tr>\n", cells.collect::<String>())
        };
        let _ = write!(out, "<div class=\"table\"><table>\n<thead>{}</thead>\n<tbody>\n", row(&head, "th"));
        for cells in &rows {
            out.push_str(&row(cells, "td"));
        }
        out.push_str("</tbody></table></div>\n");
    }
    for (what, why) in &results.not_available {
        let _ = writeln!(out, "<p class=\"soft\">{}: not available ({}).</p>", escape(what), escape(why));
    }
    out.push_str("</section>\n");
    Ok(())
}

/// Writes the page for the results in a directory. Returns its path.
///
/// # Errors
/// There are no results, or they cannot be read, or the page cannot be written.
pub fn write(out: &Path) -> anyhow::Result<PathBuf> {
    let mut all = Vec::new();
    for suite in SUITES {
        let path = out.join(format!("{suite}.json"));
        if path.exists() {
            all.push(Results::read(&path)?);
        }
    }
    if all.is_empty() {
        bail!("there are no figures in '{0}'; measure first: adamant bench ceiling --out {0}", out.display());
    }
    let path = out.join(PAGE);
    std::fs::write(&path, page(&all)?).with_context(|| format!("cannot write '{}'", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::sample;

    #[test]
    fn the_page_holds_all_and_fetches_nothing() {
        let folder = tempfile::tempdir().unwrap();
        assert!(write(folder.path()).unwrap_err().to_string().contains("measure first"));
        let mut results = sample();
        results.ended_early = Some("the disk is <full>".to_owned());
        results.write(folder.path()).unwrap();
        let text = std::fs::read_to_string(write(folder.path()).unwrap()).unwrap();
        for word in [
            "P &amp; Q",
            "adamant bench meta",
            "the disk is &lt;full&gt;",
            "mkfs.xfs is missing",
            "<td>25.0 (2.00)</td>",
        ] {
            assert!(text.contains(word), "'{word}' is missing");
        }
        assert_eq!(text.matches("<svg ").count(), 2);
        let without_namespace = text.replace("http://www.w3.org/2000/svg", "");
        for word in ["http:", "https:", "src=", "<script", "@import", "url("] {
            assert!(!without_namespace.contains(word), "the page must fetch nothing: '{word}'");
        }
    }
}
