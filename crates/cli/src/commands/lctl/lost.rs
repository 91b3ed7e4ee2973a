//! `lctl abort_recovery_mdt`: declares at the MGS that a metadata target is lost for good.

use std::process::ExitCode;

use anyhow::bail;
use host::admin::Device;
use proto::msg::{TargetLostRep, TargetLostReq};
use proto::{Opcode, TargetKind, TargetName};

use super::persistent::{self, mgs_here};
use crate::misuse::misuse;
use crate::output::say;

/// The target that a device names: by its full name, for it is usually served nowhere, or by a number of `lctl dl`.
fn named(wanted: &str, devices: &[Device]) -> anyhow::Result<TargetName> {
    let by_number = wanted.parse::<usize>().ok().and_then(|number| devices.get(number));
    let name = by_number.map_or(wanted, |device| &device.name);
    match name.parse::<TargetName>() {
        Ok(name) if name.kind == TargetKind::Mdt => Ok(name),
        Ok(name) if name.kind == TargetKind::Ost => {
            bail!("'{name}' is an object target: if it is lost, replace it with 'adamant mkfs --replace'")
        }
        _ => bail!("'{name}' is not the name of a metadata target; expected FSNAME-MDTxxxx, as demo-MDT0001"),
    }
}

/// Has the MGS declare that the target is lost.
pub(super) fn declare(wanted: Option<&str>, devices: impl FnOnce() -> Vec<Device>) -> anyhow::Result<ExitCode> {
    let Some(wanted) = wanted else {
        misuse!("abort_recovery_mdt needs the metadata target that is lost; name it with --device, as demo-MDT0001");
    };
    let name = named(wanted, &devices())?;
    let request = TargetLostReq { target: name.to_string() };
    let older = ", which cannot declare a metadata target lost; upgrade it";
    let asked = (Opcode::MgsTargetLost, &request);
    persistent::change(&mgs_here()?, &name.fsname, asked, |rep: TargetLostRep| rep.reason, older)?;
    say!(
        "{name}: declared lost; the other metadata targets settle without it what was under way; \
         to admit it again, start it once with '-o abort_recov_mdt'"
    );
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str) -> Device {
        let [state, kind, uuid, place] = ["UP", "mdt", "uuid", "unix:/run/mdt"].map(str::to_owned);
        Device { state, kind, name: name.to_owned(), uuid, place, refs: None }
    }

    #[test]
    fn a_lost_target_is_named_in_full_or_by_its_number() {
        let devices = [device("MGS"), device("demo-MDT0001"), device("demo-OST0000"), device("demo-MDT0001-mdtlov")];
        let of = |wanted: &str| named(wanted, &devices).map(|name| name.to_string());
        assert_eq!(of("demo-MDT0007").unwrap(), "demo-MDT0007", "served nowhere");
        assert_eq!(of("1").unwrap(), "demo-MDT0001");
        for (bad, why) in [
            ("0", "'MGS' is not the name of a metadata target"),
            ("2", "mkfs --replace"),
            ("3", "'demo-MDT0001-mdtlov' is not the name"),
            ("9", "'9' is not the name"),
            ("MDT0001", "expected FSNAME-MDTxxxx"),
            ("demo-OST0001", "mkfs --replace"),
            ("", "expected FSNAME-MDTxxxx"),
        ] {
            let reason = of(bad).unwrap_err().to_string();
            assert!(reason.contains(why), "{bad}: {reason}");
        }
    }
}
