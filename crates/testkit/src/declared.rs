//! The messages and enums that sources declare, and the tables of a chapter of the guide that are written from them.
//!
//! A chapter has one block for each of them, a line that begins with `**` and a table:
//!
//! ```text
//! **`Extent`** A range of bytes, both ends included.
//!
//! | | field | type | |
//! |---|---|---|---|
//! | 1 | `start` | uint64 | First byte. |
//! ```
//!
//! Where the blocks stand, and what is around them, is written by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use syn::{Attribute, Expr, Fields, Item, LitStr};

/// A message, an enum, or a module with the bits of a number.
#[derive(Debug)]
pub struct Declared {
    /// How its block begins: `` **`Extent`** ``, `` **enum `LockMode`** ``, `` **bits `valid`** ``.
    head: String,
    doc: String,
    table: &'static str,
    rows: Vec<String>,
    /// Field numbers of a message.
    pub numbers: BTreeSet<u32>,
    pub is_message: bool,
}

const FIELDS: &str = "| | field | type | |\n|---|---|---|---|\n";
const VALUES: &str = "| | | |\n|---|---|---|\n";

impl Declared {
    /// The same under the name that the guide has for it.
    #[must_use]
    pub fn renamed(self, name: &str) -> Declared {
        Declared { head: format!("**`{name}`**"), ..self }
    }

    fn block(&self) -> String {
        let mut text = format!("{} {}", self.head, self.doc);
        if !self.rows.is_empty() {
            let _ = write!(text, "\n\n{}{}", self.table, self.rows.join("\n"));
        }
        text
    }
}

/// A field of a message, or a variant of a oneof.
#[derive(Default)]
struct Field {
    numbers: Vec<u32>,
    kind: String,
    is_message: bool,
    label: &'static str,
    oneof: Option<String>,
}

/// The text of a doc comment in one line, with links as plain names.
fn doc(attrs: &[Attribute]) -> String {
    let mut lines = Vec::new();
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("doc")) {
        let syn::Meta::NameValue(meta) = &attr.meta else { continue };
        if let Expr::Lit(lit) = &meta.value
            && let syn::Lit::Str(text) = &lit.lit
        {
            let text = text.value();
            // Without blank lines, and without the targets of links.
            let is_link = |line: &str| line.split_once("`]: ").is_some_and(|(_, to)| !to.contains(' '));
            let is_text = |line: &&str| !(line.is_empty() || line.starts_with("[`") && is_link(line));
            lines.extend(Some(text.trim()).filter(is_text).map(str::to_owned));
        }
    }
    plain(lines.join(" ").trim())
}

/// `` [`crate::msg::ConnectRep::store`] `` and `` [`store`](ConnectRep::store) `` without brackets, target and path.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("[`") {
        let Some((name, after)) = after.split_once("`]") else { break };
        let name = ["crate::", "super::", "msg::", "frame::", "connect::", "ids::", "proto::"]
            .iter()
            .fold(name, |name, path| name.strip_prefix(path).unwrap_or(name));
        let _ = write!(out, "{before}`{name}`");
        rest = match after.strip_prefix('(').and_then(|link| link.split_once(')')) {
            Some((_, after)) => after,
            None => after,
        };
    }
    (out + rest).replace('|', "\\|")
}

fn prost(attrs: &[Attribute]) -> Option<Field> {
    let attr = attrs.iter().find(|attr| attr.path().is_ident("prost"))?;
    let mut field = Field::default();
    attr.parse_nested_meta(|meta| {
        let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
        let value = || -> syn::Result<String> { Ok(meta.value()?.parse::<LitStr>()?.value()) };
        match &name[..] {
            "tag" | "tags" => field.numbers = value()?.split(", ").filter_map(|number| number.parse().ok()).collect(),
            "enumeration" => field.kind = format!("enum `{}`", value()?),
            "oneof" => field.oneof = Some(value()?),
            "message" => field.is_message = true,
            "repeated" => field.label = "repeated ",
            "required" => field.label = "required ",
            "optional" => field.label = "",
            // The Rust type of bytes is of no interest.
            "bytes" => {
                field.kind = name;
                if meta.input.peek(syn::Token![=]) {
                    value()?;
                }
            }
            _ => field.kind = name,
        }
        Ok(())
    })
    .expect("attributes of prost");
    Some(field)
}

/// The innermost type: `Fid` of `Option<Fid>` and `Vec<Fid>`.
fn type_name(ty: &syn::Type) -> String {
    let syn::Type::Path(path) = ty else { return String::new() };
    let Some(last) = path.path.segments.last() else { return String::new() };
    match &last.arguments {
        syn::PathArguments::AngleBracketed(of) => of.args.iter().find_map(|arg| match arg {
            syn::GenericArgument::Type(ty) => Some(type_name(ty)),
            _ => None,
        }),
        _ => None,
    }
    .unwrap_or_else(|| last.ident.to_string())
}

fn row(number: u32, name: &str, field: &Field, ty: &syn::Type, doc: &str) -> String {
    let kind = if field.is_message { format!("`{}`", type_name(ty)) } else { field.kind.clone() };
    format!("| {number} | {name} | {}{kind} | {doc} |", field.label)
}

fn derives(attrs: &[Attribute], what: &str) -> bool {
    let mut found = false;
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("derive")) {
        let _ = attr.parse_nested_meta(|meta| {
            found |= meta.path.segments.last().is_some_and(|last| last.ident == what);
            Ok(())
        });
    }
    found
}

/// The variants of a oneof: their numbers, and their rows.
type Oneofs = BTreeMap<String, Vec<(u32, String)>>;

fn oneofs(items: &[Item]) -> Oneofs {
    let enums = items.iter().filter_map(|item| match item {
        Item::Enum(item) if derives(&item.attrs, "Oneof") => Some(item),
        _ => None,
    });
    let variants = |item: &syn::ItemEnum| {
        let row = |variant: &syn::Variant| {
            let (field, ty) = (prost(&variant.attrs)?, &variant.fields.iter().next()?.ty);
            let number = *field.numbers.first()?;
            Some((number, row(number, &format!("@: {}", variant.ident), &field, ty, &doc(&variant.attrs))))
        };
        item.variants.iter().filter_map(row).collect()
    };
    enums.map(|item| (item.ident.to_string(), variants(item))).collect()
}

fn message(item: &syn::ItemStruct, oneofs: &Oneofs) -> Declared {
    let (mut rows, mut numbers) = (Vec::new(), BTreeSet::new());
    if let Fields::Named(fields) = &item.fields {
        for declared in &fields.named {
            let (Some(name), Some(field)) = (&declared.ident, prost(&declared.attrs)) else { continue };
            match &field.oneof {
                Some(oneof) => {
                    let variants =
                        oneofs.get(oneof).unwrap_or_else(|| panic!("no oneof {oneof} beside {}", item.ident));
                    rows.extend(variants.iter().map(|(n, row)| (*n, row.replace('@', &format!("`{name}`")))));
                }
                None => {
                    let number = *field.numbers.first().expect("a number");
                    rows.push((number, row(number, &format!("`{name}`"), &field, &declared.ty, &doc(&declared.attrs))));
                }
            }
            numbers.extend(field.numbers);
        }
    }
    rows.sort_unstable();
    let rows = rows.into_iter().map(|(_, row)| row).collect();
    let head = format!("**`{}`**", item.ident);
    Declared { head, doc: doc(&item.attrs), table: FIELDS, rows, numbers, is_message: true }
}

fn values<'a>(
    head: String,
    attrs: &[Attribute],
    rows: impl Iterator<Item = (String, String, &'a [Attribute])>,
) -> Declared {
    let rows = rows.map(|(value, name, attrs)| format!("| {value} | `{name}` | {} |", doc(attrs))).collect();
    Declared { head, doc: doc(attrs), table: VALUES, rows, numbers: BTreeSet::new(), is_message: false }
}

fn literal(expr: &Expr) -> Option<String> {
    let Expr::Lit(lit) = expr else { return None };
    let syn::Lit::Int(number) = &lit.lit else { return None };
    Some(number.token().to_string())
}

/// What a source declares, by name.
///
/// # Panics
/// It is not Rust.
pub fn of(source: &str) -> BTreeMap<String, Declared> {
    let file = syn::parse_file(source).expect("a source");
    let oneofs = oneofs(&file.items);
    let mut declared = BTreeMap::new();
    for item in &file.items {
        let (name, one) = match item {
            Item::Struct(item) if derives(&item.attrs, "Message") => (&item.ident, message(item, &oneofs)),
            Item::Enum(item) if derives(&item.attrs, "Enumeration") => {
                let rows = item.variants.iter().filter_map(|variant| {
                    let value = literal(&variant.discriminant.as_ref()?.1)?;
                    Some((value, variant.ident.to_string(), &variant.attrs[..]))
                });
                (&item.ident, values(format!("**enum `{}`**", item.ident), &item.attrs, rows))
            }
            Item::Mod(item) => {
                let constants = item.content.iter().flat_map(|(_, items)| items).filter_map(|item| match item {
                    Item::Const(item) => Some((literal(&item.expr)?, item.ident.to_string(), &item.attrs[..])),
                    _ => None,
                });
                let bits = values(format!("**bits `{}`**", item.ident), &item.attrs, constants);
                if bits.rows.is_empty() {
                    continue;
                }
                (&item.ident, bits)
            }
            _ => continue,
        };
        assert!(declared.insert(name.to_string(), one).is_none(), "two of the name {name}");
    }
    declared
}

/// The chapter with its blocks as they should be.
///
/// # Panics
/// It lacks one, or has one of something that is not declared.
pub fn written(chapter: &str, declared: &BTreeMap<String, Declared>) -> String {
    let mut missing: BTreeSet<&str> = declared.values().map(|one| &one.head[..]).collect();
    let mut text = String::new();
    let mut lines = chapter.split('\n').peekable();
    while let Some(line) = lines.next() {
        let head = line.strip_prefix("**").and_then(|rest| Some(&line[..rest.find("**")? + 4]));
        let Some(head) = head.filter(|head| head.ends_with("`**")) else {
            text.push_str(line);
            text.push('\n');
            continue;
        };
        let one = declared.values().find(|one| one.head == head);
        let one = one.unwrap_or_else(|| panic!("the chapter has '{head}', which is not declared"));
        assert!(missing.remove(head), "the chapter has '{head}' twice");
        text.push_str(&one.block());
        text.push('\n');
        // What stood there: the rest of the paragraph, and the table.
        while lines.next_if(|line| !line.is_empty()).is_some() {}
        let mut ahead = lines.clone();
        ahead.next();
        if ahead.peek().is_some_and(|line| line.starts_with("| ")) {
            lines.next();
            while lines.next_if(|line| line.starts_with('|')).is_some() {}
        }
    }
    assert!(missing.is_empty(), "the chapter lacks {missing:?}");
    text.pop();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"
        /// A range of bytes,
        /// see [`crate::msg::Other`].
        #[derive(Clone, Message)]
        pub struct Extent {
            /// First byte.
            #[prost(uint64, tag = "1")]
            pub start: u64,
            /// [`Fids`](crate::Fid) of it.
            #[prost(message, repeated, tag = "2")]
            pub fids: Vec<Fid>,
            #[prost(oneof = "Policy", tags = "4, 5")]
            pub policy: Option<Policy>,
        }
        #[derive(Oneof)]
        pub enum Policy {
            /// Bits.
            #[prost(uint64, tag = "4")]
            Bits(u64),
            /// Bytes.
            #[prost(message, tag = "5")]
            Extent(Extent),
        }
        /// Which bits.
        pub mod bits {
            /// One.
            pub const ONE: u64 = 0x1;
            /// Derived.
            pub const ALL: u64 = ONE;
        }
    "#;

    #[test]
    fn a_chapter_gets_the_tables_of_what_is_declared() {
        let declared = of(SOURCE);
        assert_eq!(declared["Extent"].numbers, BTreeSet::from([1, 2, 4, 5]));
        let before =
            "# Title\n\n**`Extent`** Something\nold.\n\n| old |\n| a |\n\nText.\n\n**bits `bits`** x\n\nText.\n";
        let after = "# Title\n\n**`Extent`** A range of bytes, see `Other`.\n\n| | field | type | |\n|---|---|---|---|\n\
             | 1 | `start` | uint64 | First byte. |\n| 2 | `fids` | repeated `Fid` | `Fids` of it. |\n\
             | 4 | `policy`: Bits | uint64 | Bits. |\n| 5 | `policy`: Extent | `Extent` | Bytes. |\n\nText.\n\n\
             **bits `bits`** Which bits.\n\n| | | |\n|---|---|---|\n| 0x1 | `ONE` | One. |\n\nText.\n";
        assert_eq!(written(before, &declared), after);
        assert_eq!(written(after, &declared), after);
    }
}
