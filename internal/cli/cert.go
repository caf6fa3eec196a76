package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"trellis/internal/pki"
)

func newCertCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cert",
		Short: "Make the certificates that hosts know each other by",
		Long: lines(
			"Several machines that share a store talk over TLS, and both ends show a certificate",
			"of one authority. `cert ca` makes the authority, `cert host` a host's certificate.",
			"The authority's key, ca-key.pem, is needed for nothing else: keep it off the hosts."),
		Example: lines(
			"  trellis cert ca pki",
			"  trellis cert host pki alpha --address 192.0.2.1",
			"  trellis cert host pki beta --address 192.0.2.2 --address 2001:db8::2"),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("say what to make: `trellis cert ca DIR` or `trellis cert host DIR NAME`")
			}
			return verbsOnly(cmd, args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCertCACommand(env), newCertHostCommand(env))
	return cmd
}

// forceFlag lets a certificate be replaced.
func forceFlag(cmd *cobra.Command, force *bool) {
	cmd.Flags().BoolVar(force, "force", false, "replace what is there")
}

func newCertCACommand(env *Env) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "ca DIR",
		Short: "Make a certificate authority",
		Long: lines(
			"Make a certificate authority in DIR: ca.pem, which every host gets, and ca-key.pem,",
			"which makes certificates. It is good for ten years."),
		Example: "  trellis cert ca pki",
		Args:    exactly("DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			made, err := pki.NewCA(args[0], force)
			if err != nil {
				return err
			}
			fmt.Fprintf(env.Stdout, "%s: authority until %s; keep %s secret\n", made.Files.Cert, made.NotAfter.Format("2006-01-02"), made.Files.Key)
			return nil
		},
	}
	forceFlag(cmd, &force)
	return cmd
}

func newCertHostCommand(env *Env) *cobra.Command {
	var (
		force            bool
		addresses, roles []string
	)
	cmd := &cobra.Command{
		Use:   "host DIR NAME",
		Short: "Make, or renew, a host's certificate",
		Long: lines(
			"Make the certificate of the host NAME by the authority in DIR: NAME.pem and",
			"NAME-key.pem, good for a year. NAME is the host's name in its configuration, and",
			"--address what others reach it at. --roles binds it to some of the roles: only a host",
			"with the role vnp may have the agents of others do something.",
			"",
			"--force renews: the new certificate has the old one's addresses and roles where none",
			"are given. A running service uses it from the next connection on."),
		Example: lines(
			"  trellis cert host pki alpha --address 192.0.2.1 --address alpha.example.net",
			"  trellis cert host pki alpha --force"),
		Args: exactly("DIR", "NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			made, err := pki.NewHost(args[0], pki.Identity{Name: args[1], Addresses: addresses, Roles: roles}, force)
			if err != nil {
				return err
			}
			whose := append([]string{}, made.Names...)
			for _, a := range made.Addrs {
				whose = append(whose, a.String())
			}
			fmt.Fprintf(env.Stdout, "%s: for %s until %s; give the host this, %s and %s\n",
				made.Files.Cert, strings.Join(whose, ", "), made.NotAfter.Format("2006-01-02"), made.Files.Key, made.Files.CA)
			return nil
		},
	}
	forceFlag(cmd, &force)
	cmd.Flags().StringArrayVar(&addresses, "address", nil, "IP address or name that others reach the host at (repeat for more)")
	cmd.Flags().StringSliceVar(&roles, "roles", nil, "what the host may be: "+strings.Join(pki.Roles, ", ")+" (default: all)")
	return cmd
}
