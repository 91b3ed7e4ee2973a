//! `lctl activate`, `lctl deactivate`: whether new files may be placed on an object target.

use anyhow::bail;

use crate::misuse::misuse;

/// The setting that deactivates or activates an object target on each metadata target that uses it. `device`: the name of
/// the object target, or of the device through which a metadata target talks to it.
///
/// # Errors
/// What is wrong, as a sentence.
pub(super) fn setting(device: Option<&str>, active: bool) -> anyhow::Result<String> {
    let verb = if active { "activate" } else { "deactivate" };
    let Some(device) = device else {
        misuse!("{verb} needs an object target; example: lctl {verb} demo-OST0001");
    };
    let (target, rest) = device.split_once("-osc").unwrap_or((device, ""));
    let is_ost = target.parse::<proto::TargetName>().is_ok_and(|name| name.kind == proto::TargetKind::Ost);
    if !is_ost {
        bail!("'{device}' is no object target; example: lctl {verb} demo-OST0001");
    }
    let device = if rest.is_empty() { format!("{target}-osc-MDT*") } else { device.to_owned() };
    Ok(format!("osp.{device}.active={}", u8::from(active)))
}

#[cfg(test)]
mod tests {
    use super::setting;

    #[test]
    fn a_target_is_named_by_itself_or_by_a_device() {
        let of = |device: &str| setting(Some(device), false).ok();
        assert_eq!(of("demo-OST0001").as_deref(), Some("osp.demo-OST0001-osc-MDT*.active=0"));
        assert_eq!(of("demo-OST0001-osc-MDT0000").as_deref(), Some("osp.demo-OST0001-osc-MDT0000.active=0"));
        assert_eq!(of("demo-MDT0000"), None);
        assert_eq!(of("nonsense"), None);
        assert!(setting(None, true).is_err());
        assert_eq!(setting(Some("demo-OST0001"), true).unwrap(), "osp.demo-OST0001-osc-MDT*.active=1");
    }
}
