package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Names of the authority's files in its directory.
const (
	CAFile    = "ca.pem"
	caKeyFile = "ca" + keySuffix + ".pem"
	keySuffix = "-key"
)

// How long certificates are good for.
const (
	caLife   = 10 * 365 * 24 * time.Hour
	hostLife = 365 * 24 * time.Hour
	// early is how long before its making a certificate is good already, for
	// machines whose clocks are behind.
	early = time.Hour
)

// dnsName is a name that a certificate can hold beside addresses (RFC 1123, and
// the underscores that machines are called by all the same).
var dnsName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?$`)

// Issued describes a certificate that was made.
type Issued struct {
	Files    Files
	NotAfter time.Time
	// Names and Addrs are what the certificate says whose it is.
	Names []string
	Addrs []net.IP
	Roles []string // what the host may be; none: everything
}

// Identity is what a certificate says of its host.
type Identity struct {
	Name string
	// Addresses are IP addresses, and further names, that others reach the host at.
	Addresses []string
	// Roles are what the host may be to the others: vnp, pip, agent. They stand
	// in the subject's organizational units. None: everything.
	Roles []string
}

// Roles that a certificate can name.
var Roles = []string{"vnp", "pip", "agent"}

// ErrExists is returned when a file would be overwritten.
var ErrExists = errors.New("is there already")

// NewCA makes a certificate authority in dir, which is made where it is not
// there. An authority that is there is replaced only by force: the certificates
// that it made are worth nothing then.
func NewCA(dir string, force bool) (Issued, error) {
	files := Files{Cert: filepath.Join(dir, CAFile), Key: filepath.Join(dir, caKeyFile)}
	files.CA = files.Cert
	if err := absent(force, "an authority made anew knows none of the certificates of the old one", files.Cert, files.Key); err != nil {
		return Issued{}, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Issued{}, fmt.Errorf("make the certificate authority: %w", err)
	}
	t, err := template("Trellis", caLife)
	if err != nil {
		return Issued{}, err
	}
	t.IsCA, t.BasicConstraintsValid, t.MaxPathLenZero = true, true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Issued{}, fmt.Errorf("make the authority's key: %w", err)
	}
	if err := write(files, t, t, key, key); err != nil {
		return Issued{}, err
	}
	return Issued{Files: files, NotAfter: t.NotAfter}, nil
}

// NewHost makes the certificate of a substrate node by the authority in dir. By
// force the certificate that is there is replaced; where no addresses, or no
// roles, are given then, the new one has those of the old.
func NewHost(dir string, host Identity, force bool) (Issued, error) {
	name := host.Name
	if !dnsName.MatchString(name) || name == "ca" {
		return Issued{}, fmt.Errorf("%q cannot be a host's name in a certificate; use letters, digits, dots, dashes and underscores", name)
	}
	if strings.HasSuffix(name, keySuffix) {
		return Issued{}, fmt.Errorf("%q cannot be a host's name in a certificate: files of keys are called so; choose one that does not end in %s", name, keySuffix)
	}
	for _, role := range host.Roles {
		if !slices.Contains(Roles, role) {
			return Issued{}, fmt.Errorf("%q is no role; a host's are of %s", role, strings.Join(Roles, ", "))
		}
	}
	files := Files{CA: filepath.Join(dir, CAFile), Cert: filepath.Join(dir, name+".pem"), Key: filepath.Join(dir, name+keySuffix+".pem")}
	ca, caKey, err := authority(dir)
	if err != nil {
		return Issued{}, err
	}
	if err := absent(force, "the host goes on with the old one until it has the new file", files.Cert, files.Key); err != nil {
		return Issued{}, err
	}
	t, err := template(name, min(hostLife, time.Until(ca.NotAfter)))
	if err != nil {
		return Issued{}, err
	}
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	if err := subject(t, append([]string{name}, host.Addresses...)); err != nil {
		return Issued{}, err
	}
	t.Subject.OrganizationalUnit = host.Roles
	if old, err := readCertificate(files.Cert); err == nil {
		if len(host.Addresses) == 0 {
			t.DNSNames, t.IPAddresses = old.DNSNames, old.IPAddresses
		}
		if len(host.Roles) == 0 {
			t.Subject.OrganizationalUnit = old.Subject.OrganizationalUnit
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Issued{}, fmt.Errorf("make the key of %s: %w", name, err)
	}
	if err := write(files, t, ca, key, caKey); err != nil {
		return Issued{}, err
	}
	return Issued{Files: files, NotAfter: t.NotAfter, Names: t.DNSNames, Addrs: t.IPAddresses, Roles: t.Subject.OrganizationalUnit}, nil
}

// subject puts names and addresses in a certificate.
func subject(t *x509.Certificate, whose []string) error {
	for _, w := range whose {
		if ip := net.ParseIP(w); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else if dnsName.MatchString(w) {
			t.DNSNames = append(t.DNSNames, w)
		} else {
			return fmt.Errorf("%q is neither an IP address nor a host's name; write addresses without prefix length, port and brackets", w)
		}
	}
	return nil
}

func template(name string, life time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-early),
		NotAfter:     now.Add(life),
	}, nil
}

// absent fails if one of the files is there, unless by force.
func absent(force bool, consequence string, paths ...string) error {
	if force {
		return nil
	}
	for _, path := range paths {
		if _, err := os.Lstat(path); err == nil {
			return fmt.Errorf("%s %w; --force replaces it (%s)", path, ErrExists, consequence)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("make a certificate: %w", err)
		}
	}
	return nil
}

// authority reads the authority in dir.
func authority(dir string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	hint := fmt.Sprintf("`trellis cert ca %s` makes an authority", dir)
	ca, err := readCertificate(filepath.Join(dir, CAFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("there is no certificate authority in %s; %s", dir, hint)
	} else if err != nil {
		return nil, nil, err
	}
	path := filepath.Join(dir, caKeyFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("the authority's key %s is not here; make certificates where it is, and copy them", path)
	} else if err != nil {
		return nil, nil, fmt.Errorf("read the authority's key: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, nil, fmt.Errorf("%s is no PEM file; %s", path, hint)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w; %s", path, err, hint)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(ca.PublicKey) {
		return nil, nil, fmt.Errorf("%s is not the key of %s; %s", path, filepath.Join(dir, CAFile), hint)
	}
	if time.Now().After(ca.NotAfter) {
		return nil, nil, fmt.Errorf("the authority %s has run out on %s; `trellis cert ca --force %s` makes another, and every host needs a new certificate then",
			filepath.Join(dir, CAFile), ca.NotAfter.Format(time.DateOnly), dir)
	}
	return ca, key, nil
}

// write signs a certificate and writes it and its key, each as a whole.
func write(files Files, t, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) error {
	cert, err := x509.CreateCertificate(rand.Reader, t, parent, &key.PublicKey, signer)
	if err != nil {
		return fmt.Errorf("sign %s: %w", files.Cert, err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode %s: %w", files.Key, err)
	}
	if err := writeFile(files.Key, "PRIVATE KEY", private); err != nil {
		return err
	}
	return writeFile(files.Cert, "CERTIFICATE", cert)
}

func writeFile(path, kind string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	err = pem.Encode(f, &pem.Block{Type: kind, Bytes: content})
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
