//! Charts as SVG.
//!
//! The horizontal axis has named steps, which are equally far apart. The vertical axis begins at 0, or is logarithmic (and
//! says so) where the series lie too far apart for a linear one. Each series has its own colour and marker. The colours are
//! Okabe and Ito's, which people with any kind of colour blindness can tell apart.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::figures::{Figure, short};
use crate::results::{Chart, Series, Shape};

const WIDTH: u32 = 760;
const HEIGHT: u32 = 440;
const LEGEND: u32 = 190;
/// The colours of Okabe and Ito, without the yellow, which is too pale on white.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
];
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(214, 214, 214);
/// The ratio between the largest and smallest value from which the axis is logarithmic.
const FAR: f64 = 30.0;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Failure = anyhow::Error;

fn broken(error: impl std::fmt::Display) -> Failure {
    anyhow::anyhow!("a chart cannot be drawn: {error}")
}

/// The scale of the vertical axis, and its labels.
struct Scale {
    is_log: bool,
    low: f64,
    high: f64,
}

impl Scale {
    fn of(series: &[Series], shape: Shape) -> Scale {
        let points = || series.iter().flat_map(|series| series.points.iter().flatten());
        // A single outlier must not make all bars flat, so its whisker may be cut off at the top.
        let top = |point: &Figure| if shape == Shape::Bars { point.max.min(1.3 * point.median) } else { point.max };
        let high = points().map(top).fold(0.0, f64::max);
        let low = points().map(|point| point.min).filter(|low| *low > 0.0).fold(f64::INFINITY, f64::min);
        // The length of a bar is its value, so bars have a linear axis.
        match shape == Shape::Lines && low.is_finite() && high / low > FAR {
            true => Scale { is_log: true, low: low.log10().floor(), high: (high * 1.15).log10() },
            false => Scale { is_log: false, low: 0.0, high: if high > 0.0 { high * 1.1 } else { 1.0 } },
        }
    }

    fn height(&self, value: f64) -> f64 {
        let height = if self.is_log { value.max(10f64.powf(self.low)).log10() } else { value };
        height.min(self.high)
    }

    /// The heights that get a line and a label.
    fn marks(&self) -> Vec<f64> {
        if self.is_log {
            let tens = (self.low as i32..=self.high.ceil() as i32).map(f64::from);
            // With few powers of ten, label numbers between them too.
            let parts: &[f64] = if self.high - self.low < 3.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
            let marks = tens.flat_map(|ten| parts.iter().map(move |part| ten + part.log10()));
            return marks.filter(|mark| *mark <= self.high).collect();
        }
        let rough = self.high / 5.0;
        let ten = 10f64.powf(rough.log10().floor());
        let step =
            [1.0, 2.0, 5.0, 10.0].map(|part| part * ten).into_iter().find(|step| *step >= rough).unwrap_or(rough);
        (0..).map(|n| f64::from(n) * step).take_while(|mark| *mark <= self.high).collect()
    }

    fn label(&self, height: f64) -> String {
        let value = if self.is_log { 10f64.powf(height) } else { height };
        let trimmed = |value: f64| {
            let text = format!("{value:.2}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        };
        match value {
            value if value >= 999_999.0 => format!("{} M", trimmed(value / 1e6)),
            value if value >= 9_999.0 => format!("{} k", trimmed(value / 1e3)),
            value => trimmed(value),
        }
    }
}

/// An axis with given marks.
struct Axis {
    range: std::ops::Range<f64>,
    marks: Vec<f64>,
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (low, high): (i32, i32)) -> i32 {
        let part = (value - self.range.start) / (self.range.end - self.range.start);
        low + (f64::from(high - low) * part).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.marks.clone()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.range.clone()
    }
}

/// A chart as an SVG document.
///
/// # Errors
/// An error of the plotting library.
pub fn draw(chart: &Chart) -> anyhow::Result<String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area();
        root.fill(&WHITE).map_err(broken)?;
        let title = ("sans-serif", 21).into_font().color(&INK);
        root.draw(&Text::new(chart.title.clone(), (16, 12), title)).map_err(broken)?;
        let (left, right) = root.split_horizontally(WIDTH - LEGEND);
        plot(chart, &left)?;
        legend(chart, &right)?;
        root.present().map_err(broken)?;
    }
    // The title for screen readers.
    let title = chart.title.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    Ok(text.replacen("<svg ", "<svg role=\"img\" ", 1).replacen('>', &format!("><title>{title}</title>"), 1))
}

fn plot(chart: &Chart, area: &Area<'_>) -> anyhow::Result<()> {
    let scale = Scale::of(&chart.series, chart.shape);
    let count = chart.places.len().max(1);
    let across = Axis { range: -0.5..count as f64 - 0.5, marks: (0..count).map(|place| place as f64).collect() };
    let up = Axis { range: scale.low..scale.high, marks: scale.marks() };
    let mut context = ChartBuilder::on(area)
        .margin_top(46)
        .margin_right(10)
        .margin_bottom(10)
        .margin_left(12)
        .x_label_area_size(if chart.across.is_empty() { 34 } else { 50 })
        .y_label_area_size(72)
        .build_cartesian_2d(across, up)
        .map_err(broken)?;
    let small = ("sans-serif", 16).into_font().color(&INK);
    context
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(INK)
        .x_labels(count)
        .x_label_formatter(&|at| chart.places.get(at.round() as usize).cloned().unwrap_or_default())
        .y_label_formatter(&|height| scale.label(*height))
        .x_label_style(small.clone())
        .y_label_style(small)
        .axis_desc_style(("sans-serif", 17).into_font().color(&INK))
        .x_desc(chart.across.clone())
        .y_desc(if scale.is_log { format!("{}, logarithmic", chart.up) } else { chart.up.clone() })
        .draw()
        .map_err(broken)?;
    let whisker = |at: f64, point: &Figure, style: ShapeStyle| {
        PathElement::new(vec![(at, scale.height(point.min)), (at, scale.height(point.max))], style)
    };
    let all = chart.series.len().max(1) as f64;
    for (index, series) in chart.series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let found = series.points.iter().enumerate().filter_map(|(place, point)| Some((place as f64, (*point)?)));
        match chart.shape {
            Shape::Lines => {
                let width = if index == 0 { 3 } else { 2 };
                let line = found.clone().map(|(place, point)| (place, scale.height(point.median)));
                context.draw_series(LineSeries::new(line, colour.stroke_width(width))).map_err(broken)?;
                let whiskers = found.clone().map(|(place, point)| whisker(place, &point, colour.stroke_width(1)));
                context.draw_series(whiskers).map_err(broken)?;
                for (place, point) in found {
                    let at = context.backend_coord(&(place, scale.height(point.median)));
                    marker(area, index, at, colour)?;
                }
            }
            Shape::Bars => {
                let width = 0.8 / all;
                let left = |place: f64| place - 0.4 + width * index as f64;
                let bars = found.clone().map(|(place, point)| {
                    let corners = [(left(place), scale.low), (left(place) + width * 0.92, scale.height(point.median))];
                    Rectangle::new(corners, colour.filled())
                });
                context.draw_series(bars).map_err(broken)?;
                let middle = |place: f64| left(place) + width * 0.46;
                let whiskers = found.clone().map(|(place, point)| whisker(middle(place), &point, INK.stroke_width(1)));
                context.draw_series(whiskers).map_err(broken)?;
                let label = ("sans-serif", 12).into_font().color(&INK).pos(Pos::new(HPos::Center, VPos::Bottom));
                let labels = found.map(|(place, point)| {
                    Text::new(short(point.median), (middle(place), scale.height(point.median)), label.clone())
                });
                context.draw_series(labels).map_err(broken)?;
            }
        }
    }
    Ok(())
}

/// Draws the marker of a series at a place of the picture.
fn marker(area: &Area<'_>, index: usize, at: (i32, i32), colour: RGBColor) -> anyhow::Result<()> {
    let (left, top) = area.get_base_pixel();
    let at = (at.0 - left, at.1 - top);
    let square = |half: i32| Rectangle::new([(at.0 - half, at.1 - half), (at.0 + half, at.1 + half)], colour.filled());
    match index % 4 {
        0 => area.draw(&Circle::new(at, 5, colour.filled())),
        1 => area.draw(&square(4)),
        2 => area.draw(&TriangleMarker::new(at, 6, colour.filled())),
        _ => area.draw(&Cross::new(at, 5, colour.stroke_width(2))),
    }
    .map_err(broken)
}

fn legend(chart: &Chart, area: &Area<'_>) -> anyhow::Result<()> {
    /// The most letters in a line of the legend; longer names are wrapped.
    const LINE: usize = 17;
    let style = ("sans-serif", 16).into_font().color(&INK);
    let (left, _) = area.get_base_pixel();
    let mut y = 62;
    for (index, series) in chart.series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        match chart.shape {
            Shape::Lines => {
                let line = PathElement::new(vec![(8, y), (36, y)], colour.stroke_width(2));
                area.draw(&line).map_err(broken)?;
                marker(area, index, (left + 22, y), colour)?;
            }
            Shape::Bars => {
                area.draw(&Rectangle::new([(14, y - 7), (30, y + 7)], colour.filled())).map_err(broken)?;
            }
        }
        for line in wrap(&series.name, LINE) {
            area.draw(&Text::new(line, (44, y - 9), style.clone())).map_err(broken)?;
            y += 20;
        }
        y += 8;
    }
    let note = ("sans-serif", 13).into_font().color(&RGBColor(95, 95, 95));
    area.draw(&Text::new("median, min to max", (8, HEIGHT as i32 - 30), note)).map_err(broken)
}

/// Wraps a text into lines of at most `width` letters, unless a word is longer.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let Some(line) = lines.last_mut() else { break };
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::sample;

    #[test]
    fn a_chart_says_what_it_shows() {
        for chart in sample().charts {
            let svg = draw(&chart).unwrap();
            assert!(svg.starts_with("<svg role=\"img\" ") && svg.trim_end().ends_with("</svg>"));
            assert!(svg.contains("<title>Creates &lt;by&gt; processes</title>"), "{}", &svg[..300]);
            for word in ["processes", "files/s", "Adamant", "tmpfs", "20 k"] {
                assert!(svg.contains(&format!("\n{word}\n")), "'{word}' is missing:\n{svg}");
            }
            assert!(svg.matches("#0072B2").count() > 2, "the first colour is missing");
        }
    }

    #[test]
    fn a_chart_of_nothing_is_drawn_too() {
        let mut chart = sample().charts.remove(0);
        for series in &mut chart.series {
            series.points = vec![None, None];
        }
        assert!(draw(&chart).unwrap().contains("</svg>"));
    }

    #[test]
    fn scales_reach_all_and_have_labels() {
        let series = |low: f64, high: f64| {
            let point = |value| Some(Figure { median: value, min: value, max: value, samples: 1 });
            [Series { name: String::new(), points: vec![point(low), None, point(high)] }]
        };
        for (low, high, is_log) in [(1.0, 20.0, false), (8e3, 5e5, true), (0.0, 3.0, false), (0.01, 0.02, false)] {
            let scale = Scale::of(&series(low, high), Shape::Lines);
            assert_eq!(scale.is_log, is_log);
            assert!(scale.height(high) <= scale.high && scale.height(low) >= scale.low);
            let marks = scale.marks();
            assert!((3..=12).contains(&marks.len()), "{low} {high}: {marks:?}");
        }
        assert!(!Scale::of(&series(8e3, 5e5), Shape::Bars).is_log);
        let linear = Scale { is_log: false, low: 0.0, high: 1.0 };
        let labels = [0.0, 0.5, 5000.0, 20_000.0, 1_500_000.0].map(|value| linear.label(value));
        assert_eq!(labels, ["0", "0.5", "5000", "20 k", "1.5 M"]);
    }

    #[test]
    fn long_names_are_broken_between_words() {
        assert_eq!(wrap("Adamant, many mounts, stride 1", 20), ["Adamant, many", "mounts, stride 1"]);
        assert_eq!(wrap("word", 2), ["word"]);
    }
}
